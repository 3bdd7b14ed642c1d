"""Program texts that break one rule each, by the name of their snapshot."""

BAD_PROGRAMS = {
    # Rule LinComb
    "lincomb_of_h_var": """
        Input W :: A(n, n) ~ N(0, 1/n)
        Input g1 :: G(n) ~ N(0, 1)
        Input g2 :: G(n) ~ N(0, 1)
        x1 := relu(g1) :: H(n)
        x2 := tanh(g2) :: H(n)
        g4 := MatMul(W, x1) :: G(n)
        g3 := 1.0*g1 + 0.5*x2
    """,
    "lincomb_of_two_widths": """
        Input a :: G(n) ~ N(0, 1)
        Input b :: G(m) ~ N(0, 1)
        c := a + b
    """,
    # Rule Nonlin
    "nonlin_of_two_widths": """
        Input a :: G(n) ~ N(0, 1)
        Input b :: G(m) ~ N(0, 1)
        c := relu(a)*tanh(b)
    """,
    "nonlin_without_a_vector": """
        Input g :: G(n) ~ N(0, 1)
        c := Moment(g*g)
        x := Nonlin(sqrt(c))
    """,
    "exponential_of_a_square": """
        Input g :: G(n) ~ N(0, 1)
        x := exp(g^2)
    """,
    "exponential_of_a_square_in_two_steps": """
        Input g :: G(n) ~ N(0, 1)
        y := g*g
        x := exp(y)
    """,
    "power_of_a_square": """
        Input g :: G(n) ~ N(0, 1)
        x := 2^(g*g)
    """,
    "gaussian_that_grows": """
        Input g :: G(n) ~ N(0, 1)
        c := Moment(gaussian(g, rate=-1))
    """,
    # Rule MatMul
    "matmul_of_another_width": """
        Input W :: A(n, n) ~ N(0, 1/n)
        Input b :: G(m) ~ N(0, 1)
        x := relu(b)
        h := MatMul(W, x)
    """,
    "matmul_without_a_matrix": """
        Input g :: G(n) ~ N(0, 1)
        x := relu(g)
        h := MatMul(x, g)
    """,
    "matmul_of_two_matrices": """
        Input W :: A(n, n) ~ N(0, 1/n)
        h := MatMul(W, W)
    """,
    "matmul_of_c_var": """
        Input W :: A(n, n) ~ N(0, 1/n)
        Input g :: G(n) ~ N(0, 1)
        c := Moment(g*g)
        h := MatMul(W, c)
    """,
    "matmul_of_data": """
        Data x = [1, 2]
        Input W :: A(n, 2) ~ N(0, 1/2)
        h := MatMul(W, x)
    """,
    "matmul_of_an_expression": """
        Input W :: A(n, n) ~ N(0, 1/n)
        Input g :: G(n) ~ N(0, 1)
        h := MatMul(W, relu(g))
    """,
    "matmul_inside_an_expression": """
        Input W :: A(n, n) ~ N(0, 1/n)
        Input g :: G(n) ~ N(0, 1)
        x := relu(MatMul(W, g))
    """,
    "matmul_aligned_with_another_length": """
        Input W :: A(n, n)[3] ~ N(0, 1/n)
        Input g :: G(n)[4] ~ N(0, 1)
        h := MatMul(W, g, aligned=1)
    """,
    "transpose": """
        Input W :: A(n, n) ~ N(0, 1/n)
        Input g :: G(n) ~ N(0, 1)
        h := MatMul(W, g)
        k := MatMul(W^T, h)
    """,
    "matrix_in_an_expression": """
        Input W :: A(n, n) ~ N(0, 1/n)
        Input g :: G(n) ~ N(0, 1)
        h := g + W
    """,
    # Rule Output
    "readout_used_elsewhere": """
        Input g :: G(n) ~ N(0, 1)
        Input v :: G(n) ~ N(0, 1)
        x := relu(g)*v
        Output v^T x / sqrt(n)
    """,
    "readout_of_itself": """
        Input v :: G(n) ~ N(0, 1)
        Output v^T v / sqrt(n)
    """,
    "readout_that_is_computed": """
        Input g :: G(n) ~ N(0, 1)
        x := relu(g)
        w := tanh(g)
        Output w^T x / sqrt(n)
    """,
    "readout_that_is_embedded": """
        Data x = [1, 2]
        Input U :: A(n, 2) ~ N(0, 1/2)
        Input Ux :: G(n) ~ MatMul(U, x)
        y := relu(Ux)
        Output Ux^T y / sqrt(n)
    """,
    "readout_with_a_mean": """
        Input g :: G(n) ~ N(0, 1)
        Input v :: G(n) ~ N(0.5, 1)
        Output v^T g / sqrt(n)
    """,
    "readout_correlated_with_a_bias": """
        Input b :: G(n) ~ N(0, 1)
        Input v :: G(n) ~ N(0, 1, b: 0.5)
        x := relu(b)
        Output v^T x / sqrt(n)
    """,
    "bias_correlated_with_a_readout": """
        Input v :: G(n) ~ N(0, 1)
        Input b :: G(n) ~ N(0, 1, v: 0.5)
        x := relu(b)
        Output v^T x / sqrt(n)
    """,
    "output_of_two_widths": """
        Input g :: G(n) ~ N(0, 1)
        Input v :: G(m) ~ N(0, 1)
        Output v^T g / sqrt(n)
    """,
    "output_over_another_width": """
        Input g :: G(n) ~ N(0, 1)
        Input v :: G(n) ~ N(0, 1)
        Output v^T g / sqrt(m)
    """,
    "output_of_c_var": """
        Input g :: G(n) ~ N(0, 1)
        Input v :: G(n) ~ N(0, 1)
        c := Moment(g*g)
        Output v^T c / sqrt(n)
    """,
    "output_without_root": """
        Input g :: G(n) ~ N(0, 1)
        Input v :: G(n) ~ N(0, 1)
        Output v^T g / n
    """,
    "output_of_two_shapes": """
        Input g :: G(n)[3] ~ N(0, 1)
        Input k :: G(n)[2] ~ N(0, 1)
        Input v :: G(n) ~ N(0, 1)
        Output v^T g / sqrt(n) + v^T k / sqrt(n)
    """,
    "output_summed_over_two_lengths": """
        Input g :: G(n)[3] ~ N(0, 1)
        Input v :: G(n)[2] ~ N(0, 1)
        Output sum(v^T g, axes=1) / sqrt(n)
    """,
    # Rule Moment
    "moment_of_two_widths": """
        Input a :: G(n) ~ N(0, 1)
        Input b :: G(m) ~ N(0, 1)
        c := Moment(a*b)
    """,
    "moment_of_c_var": """
        Input a :: G(n) ~ N(0, 1)
        c := Moment(a*a)
        d := Moment(c*c)
    """,
    "moment_inside_an_expression": """
        Input g :: G(n) ~ N(0, 1)
        x := g / Moment(g*g)
    """,
    # Rule Assign, and names
    "undefined_name": """
        Input bias :: G(n) ~ N(0, 1)
        x := relu(biass)
    """,
    "undefined_name_like_no_other": """
        Input bias :: G(n) ~ N(0, 1)
        x := relu(q)
    """,
    "cycle": """
        Input W :: A(n, n) ~ N(0, 1/n)
        Input g :: G(n) ~ N(0, 1)
        h := MatMul(W, s)
        s := tanh(h + g)
    """,
    "variable_in_its_own_definition": """
        Input g :: G(n) ~ N(0, 1)
        s := tanh(s + g)
    """,
    "name_defined_twice": """
        Input g :: G(n) ~ N(0, 1)
        x := relu(g)
        x := tanh(x)
    """,
    "name_of_data_defined_again": """
        Data g = [1, 2]
        Input g :: G(n) ~ N(0, 1)
    """,
    "data_given_twice": """
        Data x = [1, 2]
        Data x = [3, 4]
    """,
    "wrong_declared_type": """
        Input g :: G(n) ~ N(0, 1)
        x := relu(g) :: G(n)
    """,
    "wrong_declared_width": """
        Input g :: G(n) ~ N(0, 1)
        x := relu(g) :: H(m)  # the width of g is n
    """,
    # Rule Input
    "input_of_type_h": """
        Input x :: H(n) ~ N(0, 1)
    """,
    "matrix_with_finitely_many_rows": """
        Input v :: A(3, n) ~ N(0, 1/n)
    """,
    "matrix_law_without_1_over_n": """
        Input W :: A(n, n) ~ N(0, 1)
    """,
    "matrix_law_over_the_rows": """
        Input W :: A(n1, n2) ~ N(0, 2/n1)
    """,
    "vector_law_over_n": """
        Input g :: G(n) ~ N(0, 1/n)
    """,
    "negative_variance_of_a_matrix": """
        Input W :: A(n, n) ~ N(0, -1/n)
    """,
    "negative_variance": """
        Input g :: G(n) ~ N(0, -1)
    """,
    "infinite_mean": """
        Input g :: G(n) ~ N(inf, 1)
    """,
    "block_without_members": """
        Input g :: G(n)[0] ~ N(0, 1)
    """,
    "covariance_not_psd": """
        Input g :: G(n)[2] ~ N(0, [[1, 2], [2, 1]])
    """,
    "joint_covariance_not_psd": """
        Input g :: G(n) ~ N(0, 1)
        Input k :: G(n) ~ N(0, 1, g: 2)
    """,
    "covariance_not_symmetric": """
        Input g :: G(n)[2] ~ N(0, [[1, 0.5], [0, 1]])
    """,
    "covariance_of_wrong_shape": """
        Input g :: G(n)[2] ~ N(0, [[1, 0, 0], [0, 1, 0], [0, 0, 1]])
    """,
    "covariance_ragged": """
        Input g :: G(n)[2] ~ N(0, [[1, 0], [0]])
    """,
    "mean_of_wrong_shape": """
        Input g :: G(n)[2] ~ N([1, 2, 3], 1)
    """,
    "cross_covariance_transposed": """
        Input g :: G(n)[2] ~ N(0, 1)
        Input k :: G(n)[3] ~ N(0, 1, g: [[0.1, 0.2, 0.3], [0, 0, 0]])
    """,
    "cross_covariance_with_a_later_input": """
        Input k :: G(n) ~ N(0, 1, g: 0.5)
        Input g :: G(n) ~ N(0, 1)
    """,
    "cross_covariance_of_two_widths": """
        Input g :: G(m) ~ N(0, 1)
        Input k :: G(n) ~ N(0, 1, g: 0.5)
    """,
    # Rule Embed, and data
    "embedding_of_another_dimension": """
        Data x = [1, 2, 3]
        Input U :: A(n, 2) ~ N(0, 1/2)
        Input Ux :: G(n) ~ MatMul(U, x)
    """,
    "embedding_by_an_infinite_matrix": """
        Data x = [1, 2, 3]
        Input W :: A(n, n) ~ N(0, 1/n)
        Input Wx :: G(n) ~ MatMul(W, x)
    """,
    "embedding_of_a_vector": """
        Input U :: A(n, 2) ~ N(0, 1/2)
        Input g :: G(n) ~ N(0, 1)
        Input Ug :: G(n) ~ MatMul(U, g)
    """,
    "embedding_of_another_type": """
        Data x = [[1, 2], [3, 4]]
        Input U :: A(n, 2) ~ N(0, 1/2)
        Input Ux :: G(n) ~ MatMul(U, x)
    """,
    "ragged_data": """
        Data x = [[1, 2], [3]]
    """,
    "data_with_nan": """
        Data x = [1, nan]
    """,
    "data_that_is_no_array": """
        Data x = ones
    """,
    # Expressions
    "unknown_function": """
        Input g :: G(n) ~ N(0, 1)
        x := rleu(g)
    """,
    "too_many_arguments": """
        Input g :: G(n) ~ N(0, 1)
        x := relu(g, g)
    """,
    "too_few_arguments": """
        Input g :: G(n) ~ N(0, 1)
        x := maximum(g)
    """,
    "unknown_option": """
        Input g :: G(n) ~ N(0, 1)
        x := leaky_relu(g, slop=0.1)
    """,
    "unknown_option_of_a_mixing": """
        Input g :: G(n)[3] ~ N(0, 1)
        x := batchnorm(g, axis=0, epsilon=0.1)
    """,
    "missing_option": """
        Input g :: G(n)[3] ~ N(0, 1)
        x := sum(g)
    """,
    "option_given_twice": """
        Input g :: G(n)[3] ~ N(0, 1)
        x := sum(g, axis=0, axis=1)
    """,
    "option_of_wrong_kind": """
        Input g :: G(n) ~ N(0, 1)
        x := leaky_relu(g, slope="steep")
    """,
    "index_outside": """
        Input g :: G(n)[3] ~ N(0, 1)
        x := relu(g[0])*relu(g[3])
    """,
    "index_of_too_many_axes": """
        Input g :: G(n)[3] ~ N(0, 1)
        x := relu(g[0, 1])
    """,
    "index_missing": """
        Input g :: G(n)[3] ~ N(0, 1)
        x := at(g)
    """,
    "axis_outside": """
        Input g :: G(n)[3] ~ N(0, 1)
        x := sum(g, axis=1)
    """,
    "index_shapes_that_do_not_broadcast": """
        Input g :: G(n)[3] ~ N(0, 1)
        Input k :: G(n)[4] ~ N(0, 1)
        x := relu(g)*k
    """,
    "contraction_by_vectors": """
        Input g :: G(n)[3, 3] ~ N(0, 1)
        x := contract(g, g)
    """,
    "component_that_does_not_exist": """
        Input g :: G(n) ~ N(0, 1)
        x := softmax.2(g, -g)
    """,
    "component_of_a_function": """
        Input g :: G(n) ~ N(0, 1)
        x := relu.0(g)
    """,
    "number_too_large": """
        Input g :: G(n) ~ N(0, 1)
        x := 1e400*g
    """,
    # Syntax
    "parenthesis_not_closed": """
        Input g :: G(n) ~ N(0, 1)
        x := relu(tanh(g)  # here
    """,
    "parenthesis_too_many": """
        Input g :: G(n) ~ N(0, 1)
        x := relu(g))
    """,
    "line_that_ends_too_early": """
        Input g :: G(n)
    """,
    "unknown_character": """
        Input g :: G(n) ~ N(0, 1)
        x := relu(g) $ 2
    """,
    "matrix_product_with_at": """
        Input W :: A(n, n) ~ N(0, 1/n)
        Input g :: G(n) ~ N(0, 1)
        h := W @ g
    """,
    "unknown_statement": """
        Input g :: G(n) ~ N(0, 1)
        Inptu h :: G(n) ~ N(0, 1)
    """,
    "equals_sign": """
        Input g :: G(n) ~ N(0, 1)
        x = relu(g)
    """,
    "unknown_type": """
        Input g :: B(n) ~ N(0, 1)
    """,
    "type_with_wrong_dimensions": """
        Input g :: G(n, n) ~ N(0, 1)
    """,
}
