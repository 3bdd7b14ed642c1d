"""Python of a user who makes one mistake each, by the name of the snapshot.

Each is a file of its own, run with the names of `PRELUDE`.
"""

PRELUDE = """
import numpy as np
import netsor as ns
U, W, v, b = ns.Matrix(), ns.Matrix(), ns.Matrix(rows=1), ns.Vector()
x = [1.0, 2.0]
tokens = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
"""

BAD_NETWORKS = {
    # Matrices
    "python_transpose": """
        @ns.network
        def net(x):
            h = ns.relu(W @ (U @ x))
            return v @ (W.T @ h)

        ns.program(net, x)
    """,
    "python_matrix_plus_vector": """
        @ns.network
        def net(x):
            return v @ ns.relu(U @ x + W)

        ns.program(net, x)
    """,
    "python_matrix_scaled": """
        @ns.network
        def net(x):
            return v @ ns.relu((2 * U) @ x)

        ns.program(net, x)
    """,
    "python_function_of_a_matrix": """
        @ns.network
        def net(x):
            return v @ (ns.relu(W) @ (U @ x))

        ns.program(net, x)
    """,
    "python_matrix_times_matrix": """
        @ns.network
        def net(x):
            return v @ ((W @ U) @ x)

        ns.program(net, x)
    """,
    "python_matrix_on_the_right": """
        @ns.network
        def net(x):
            h = U @ x
            return h @ v

        ns.program(net, x)
    """,
    "python_matrix_on_data_and_vectors": """
        @ns.network
        def net(x):
            h = ns.relu(W @ x)
            return v @ ns.relu(W @ h)

        ns.program(net, x)
    """,
    "python_matrix_of_c_var": """
        @ns.network
        def net(x):
            h = U @ x
            return v @ (W @ ns.dot(h, h))

        ns.program(net, x)
    """,
    "python_matrix_of_a_number": """
        @ns.network
        def net(x):
            return v @ (W @ 2.0)

        ns.program(net, x)
    """,
    "python_matrix_outside_a_network": """
        h = W @ np.array([1.0, 2.0])
    """,
    "python_vector_outside_a_network": """
        h = b + 1
    """,
    "python_readout_of_data": """
        @ns.network
        def net(x):
            return v @ x

        ns.program(net, x)
    """,
    "python_named_widths_that_clash": """
        A, B = ns.Matrix(rows="a"), ns.Matrix(rows="b")

        @ns.network
        def net(x):
            return v @ ns.relu(A @ x + B @ x)

        ns.program(net, x)
    """,
    "python_flattened_block_without_matrix": """
        @ns.network
        def net(tokens):
            return v @ ns.relu(ns.flatten(U @ tokens))

        ns.program(net, tokens)
    """,
    "python_flattened_blocks_of_two_shapes": """
        @ns.network
        def net(tokens):
            return v @ ns.flatten(U @ tokens)

        ns.program(net, tokens, tokens[:2])
    """,
    "python_aligned_with_another_length": """
        K = ns.Matrix(index=(2,))

        @ns.network
        def net(tokens):
            return v @ K.times(U @ tokens, aligned=1)

        ns.program(net, tokens)
    """,
    # Outputs
    "python_output_used_further": """
        @ns.network
        def net(x):
            y = v @ ns.relu(U @ x)
            return ns.tanh(y)

        ns.program(net, x)
    """,
    "python_output_squared": """
        @ns.network
        def net(x):
            return (v @ ns.relu(U @ x)) ** 2

        ns.program(net, x)
    """,
    "python_output_times_matrix": """
        @ns.network
        def net(x):
            y = v @ ns.relu(U @ x)
            return v @ ns.relu(W @ y)

        ns.program(net, x)
    """,
    "python_outputs_stacked_with_a_vector": """
        @ns.network
        def net(x):
            y = v @ ns.relu(U @ x)
            return ns.stack([y, U @ x])

        ns.program(net, x)
    """,
    "python_outputs_of_two_shapes": """
        w = ns.Matrix(rows=2)

        @ns.network
        def net(x):
            h = ns.relu(U @ x)
            return v @ h + w @ h

        ns.program(net, x)
    """,
    "python_network_returns_h_var": """
        @ns.network
        def net(x):
            h = U @ x
            return ns.relu(h)

        ns.program(net, x)
    """,
    "python_network_returns_none": """
        @ns.network
        def net(x):
            h = U @ x
            v @ ns.relu(h)

        ns.program(net, x)
    """,
    "python_network_returns_nothing": """
        @ns.network
        def net(x):
            return [v @ h for h in ()]

        ns.program(net, x)
    """,
    # Functions
    "python_function_that_sorts": """
        @ns.network
        def net(x):
            return v @ ns.nonlin(np.sort, U @ x)

        ns.program(net, x)
    """,
    "python_function_that_averages": """
        @ns.network
        def net(x):
            return v @ ns.nonlin(np.mean, U @ x)

        ns.program(net, x)
    """,
    "python_function_that_centres": """
        def centred(x):
            return x - x.mean()

        @ns.network
        def net(x):
            return v @ ns.nonlin(centred, U @ x)

        ns.program(net, x)
    """,
    "python_function_that_changes_shape": """
        def twice(x):
            return np.concatenate([x, x])

        @ns.network
        def net(x):
            return v @ ns.nonlin(twice, U @ x)

        ns.program(net, x)
    """,
    "python_function_that_raises": """
        def clipped(x):
            return 0.0 if x < 0 else x

        @ns.network
        def net(x):
            return v @ ns.nonlin(clipped, U @ x)

        ns.program(net, x)
    """,
    "python_function_of_too_many_arguments": """
        def product(x, y):
            return x * y

        @ns.network
        def net(x):
            return v @ ns.nonlin(product, U @ x)

        ns.program(net, x)
    """,
    "python_function_that_returns_none": """
        def forgetful(x):
            np.tanh(x)

        @ns.network
        def net(x):
            return v @ ns.nonlin(forgetful, U @ x)

        ns.program(net, x)
    """,
    "python_function_with_complex_values": """
        def rotated(x):
            return 1j * x

        @ns.network
        def net(x):
            return v @ ns.nonlin(rotated, U @ x)

        ns.program(net, x)
    """,
    "python_function_that_mixes_the_width": """
        def normalised(members):
            return members / members.sum()

        @ns.network
        def net(tokens):
            return v @ ns.nonlin(normalised, U @ tokens, axes=0)

        ns.program(net, tokens)
    """,
    "python_function_not_controlled": """
        def steep(x):
            return np.exp(x**2)

        @ns.network
        def net(x):
            return v @ ns.nonlin(steep, U @ x)

        ns.program(net, x)
    """,
    "python_exponential_of_a_square": """
        @ns.network
        def net(x):
            h = U @ x
            square = h * h
            return v @ ns.exp(square)

        ns.program(net, x)
    """,
    "python_too_many_arguments": """
        @ns.network
        def net(x):
            h = U @ x
            return v @ ns.relu(h, h)

        ns.program(net, x)
    """,
    "python_unknown_option": """
        @ns.network
        def net(x):
            return v @ ns.leaky_relu(U @ x, slop=0.1)

        ns.program(net, x)
    """,
    # Traced values
    "python_truth_value": """
        @ns.network
        def net(x):
            h = U @ x
            return v @ (h if h > 0 else 0 * h)

        ns.program(net, x)
    """,
    "python_equality_with_a_number": """
        @ns.network
        def net(x):
            h = U @ x
            return v @ (h if h == 0 else ns.relu(h))

        ns.program(net, x)
    """,
    "python_truth_value_of_data": """
        @ns.network
        def net(x):
            phi = ns.relu if x[0] > 0 else ns.tanh
            return v @ phi(U @ x)

        ns.program(net, x)
    """,
    "python_builtin_max": """
        @ns.network
        def net(x):
            return v @ max(U @ x, 0)

        ns.program(net, x)
    """,
    "python_float_of_a_vector": """
        @ns.network
        def net(x):
            h = U @ x
            return v @ (h * float(h))

        ns.program(net, x)
    """,
    "python_numpy_function": """
        @ns.network
        def net(x):
            return v @ np.exp(U @ x)

        ns.program(net, x)
    """,
    "python_numpy_reduction": """
        @ns.network
        def net(x):
            h = U @ x
            return v @ (h - np.mean(h))

        ns.program(net, x)
    """,
    "python_numpy_stack": """
        @ns.network
        def net(x):
            h = U @ x
            return v @ np.stack([h, h])

        ns.program(net, x)
    """,
    "python_numpy_array": """
        @ns.network
        def net(x):
            return v @ np.asarray(U @ x)

        ns.program(net, x)
    """,
    "python_assignment_to_a_member": """
        @ns.network
        def net(tokens):
            h = U @ tokens
            h[0] = 0
            return v @ h

        ns.program(net, tokens)
    """,
    "python_product_of_vectors": """
        @ns.network
        def net(x):
            h = U @ x
            return v @ (h @ h)

        ns.program(net, x)
    """,
    "python_softmax_of_vectors": """
        @ns.network
        def net(tokens):
            return v @ ns.softmax(U @ tokens)

        ns.program(net, tokens)
    """,
    "python_mean_of_c_var": """
        @ns.network
        def net(x):
            h = U @ x
            square = ns.dot(h, h)
            return v @ (h / ns.mean(square))

        ns.program(net, x)
    """,
    "python_index_outside": """
        @ns.network
        def net(tokens):
            h = U @ tokens
            return v @ h[3]

        ns.program(net, tokens)
    """,
    "python_index_that_is_none": """
        @ns.network
        def net(tokens):
            h = U @ tokens
            return v @ h["last"]

        ns.program(net, tokens)
    """,
    "python_length_of_a_single_vector": """
        @ns.network
        def net(x):
            h = U @ x
            return v @ h[len(h) - 1]

        ns.program(net, x)
    """,
    "python_index_shapes_that_do_not_broadcast": """
        @ns.network
        def net(tokens):
            h = U @ tokens
            return v @ (h[:2] * h)

        ns.program(net, tokens)
    """,
    "python_axis_outside": """
        @ns.network
        def net(tokens):
            return v @ ns.sum(U @ tokens, axis=1)

        ns.program(net, tokens)
    """,
    "python_stack_of_two_shapes": """
        @ns.network
        def net(tokens):
            h = U @ tokens
            return v @ ns.concat([h, h[0]])

        ns.program(net, tokens)
    """,
    "python_contraction_by_vectors": """
        @ns.network
        def net(tokens):
            h = U @ tokens
            return v @ ns.contract(h[None], h)

        ns.program(net, tokens)
    """,
    "python_value_of_another_run": """
        kept = []

        @ns.network
        def net(x):
            kept.append(ns.relu(U @ x))
            return v @ kept[0]

        ns.program(net, x)
        ns.program(net, x)
    """,
    "python_call_over_several_lines": """
        @ns.network
        def net(tokens):
            return v @ ns.softmax(
                U @ tokens,
                axis=0,
            )

        ns.program(net, tokens)
    """,
    "python_line_beyond_ascii": """
        @ns.network
        def net(x):
            größe = U @ x; return v @ (größe @ größe)

        ns.program(net, x)
    """,
    # Data
    "python_input_with_nan": """
        ns.program(ns.zoo.mlp(), [1.0, np.nan])
    """,
    "python_input_with_infinity": """
        ns.program(ns.zoo.mlp(), [np.inf, 1.0])
    """,
    "python_set_with_nan": """
        ns.simulate(ns.zoo.mlp(), [[1.0, 2.0], [np.nan, 0.0]], width=10)
    """,
    "python_set_with_infinity": """
        ns.simulate(ns.zoo.mlp(), np.array([[1.0, 2.0], [0.0, -np.inf]]), width=10)
    """,
    "python_constant_that_is_infinite": """
        @ns.network
        def net(x):
            return v @ (U @ x * np.inf)

        ns.program(net, x)
    """,
    "python_input_ragged": """
        ns.program(ns.zoo.simple_rnn(), [[1.0, 2.0], [3.0]])
    """,
    "python_set_ragged": """
        ns.simulate(ns.zoo.simple_rnn(), [[[1.0, 2.0], [3.0]]], width=10)
    """,
    "python_input_of_text": """
        ns.program(ns.zoo.mlp(), "1.0 2.0")
    """,
    "python_input_empty": """
        ns.program(ns.zoo.simple_rnn(), np.ones((0, 2)))
    """,
    "python_input_complex": """
        ns.program(ns.zoo.mlp(), np.array([1.0, 1j]))
    """,
    "python_input_of_another_dimension": """
        ns.program(ns.zoo.mlp(), [1.0, 2.0], [1.0, 2.0, 3.0])
    """,
    "python_input_without_axes": """
        ns.simulate(ns.zoo.mlp(), [1.0, 2.0], width=10)
    """,
    "python_image_with_one_axis": """
        conv = ns.Conv2d()

        @ns.network
        def net(image):
            return v @ ns.global_mean_pool(ns.relu(conv(image)))

        ns.program(net, np.ones((5, 3)))
    """,
    "python_set_that_is_a_tuple": """
        ns.simulate(ns.zoo.mlp(), (1.0, 2.0), width=10)
    """,
    "python_set_empty": """
        ns.simulate(ns.zoo.mlp(), [], width=10)
    """,
    "python_graph_without_adjacency": """
        ns.program(ns.zoo.graph_conv(), np.ones((3, 2)))
    """,
    "python_adjacency_of_another_size": """
        ns.program(ns.zoo.graph_conv(), (np.ones((3, 2)), np.ones((4, 4))))
    """,
    "python_adjacency_not_square": """
        ns.normalized_adjacency(np.ones((3, 2)))
    """,
    # Parameters and layers
    "python_variance_negative": """
        W = ns.Matrix(-1.0)
    """,
    "python_variance_nan": """
        W = ns.Matrix(np.nan)
    """,
    "python_law_nan": """
        b = ns.Vector(np.nan)
    """,
    "python_law_ragged": """
        b = ns.Vector([[1.0, 0.0], [0.0]])
    """,
    "python_covariance_not_square": """
        b = ns.Vector([1.0, 2.0])
    """,
    "python_covariance_not_psd": """
        c = ns.Vector([[1.0, 2.0], [2.0, 1.0]])

        @ns.network
        def net(x):
            return v @ ns.relu(U @ x + c)

        ns.program(net, x)
    """,
    "python_rows_zero": """
        v = ns.Matrix(rows=0)
    """,
    "python_rows_not_an_integer": """
        v = ns.Matrix(rows=1.5)
    """,
    "python_index_shape_zero": """
        W = ns.Matrix(index=(3, 0))
    """,
    "python_name_that_is_no_name": """
        W = ns.Matrix(name="first layer")
    """,
    "python_variances_of_another_number": """
        ns.zoo.mlp(depth=3, var_w=[1.0, 2.0])
    """,
    "python_name_of_a_function": """
        ns.zoo.mlp(phi="relu")
    """,
    "python_name_of_a_gate": """
        ns.zoo.gru(gate="sigmoid")
    """,
    "python_depth_zero": """
        ns.zoo.mlp(depth=0)
    """,
    "python_attention_scaled_by_root": """
        @ns.network
        def net(tokens):
            h = U @ tokens
            return v @ ns.attention(h, h, h, scale="1/sqrt(n)")

        ns.program(net, tokens)
    """,
    "python_attention_over_a_single_vector": """
        attend = ns.Attention()
        net = ns.network(lambda x: v @ attend(x))
        ns.program(net, x)
    """,
    "python_heads_zero": """
        ns.Attention(heads=0)
    """,
    "python_padding": """
        ns.Conv2d(padding="full")
    """,
    "python_padding_of_a_pool": """
        @ns.network
        def net(image):
            return v @ ns.max_pool(U @ image, padding="full")

        ns.program(net, np.ones((4, 4, 3)))
    """,
    "python_convolution_of_two_kinds": """
        ns.Conv2d(transposed=True, depthwise=True)
    """,
    "python_depthwise_convolution_of_data": """
        conv = ns.Conv2d(depthwise=True)
        ns.program(ns.network(lambda image: v @ conv(image)), np.ones((4, 4, 3)))
    """,
    "python_local_convolution_of_another_shape": """
        conv = ns.Conv2d(local=(3, 3))
        ns.program(ns.network(lambda image: v @ conv(image)), np.ones((4, 4, 3)))
    """,
    "python_transposed_convolution_without_outputs": """
        conv = ns.Conv1d(3, transposed=True, padding=4)
        ns.program(ns.network(lambda x: v @ conv(x)), np.ones((4, 3)))
    """,
    "python_joined_data": """
        ns.program(ns.network(lambda x: v @ ns.concat([x, U @ x], axis="width")), np.ones(3))
    """,
    "python_shares": """
        @ns.network
        def net(x):
            return v @ ns.concat([U @ x, U @ x], axis="width", shares=(1, -1))

        ns.program(net, np.ones(3))
    """,
    "python_dropout": """
        ns.Dropout(1.5)
    """,
    "python_dropout_of_data": """
        drop = ns.Dropout(0.5)
        ns.program(ns.network(lambda x: v @ (U @ drop(x))), np.ones(3))
    """,
    "python_many_heads_tied": """
        ns.Attention(np.inf, tied=True)
    """,
    "python_attention_weights": """
        ns.Attention(weights="relu")
    """,
    "python_degree": """
        ns.program(ns.network(lambda x: v @ ns.monomial(U @ x, -1)), np.ones(3))
    """,
    "python_gamma": """
        ns.program(ns.network(lambda x: v @ ns.rbf(U @ x, gamma=0.0)), np.ones(3))
    """,
    "python_gamma_of_an_exponential": """
        ns.program(ns.network(lambda x: v @ ns.exp_normalized(U @ x, gamma=-1.0)), np.ones(3))
    """,
    "python_mask_of_a_mean": """
        ns.program(ns.network(lambda x: v @ ns.global_mean_pool(U @ x, mask=U @ x)), np.ones((4, 3)))
    """,
    "python_kernel_of_text": """
        ns.Conv2d(kernel="3x3")
    """,
    "python_window_too_large": """
        @ns.network
        def net(image):
            return v @ ns.mean_pool(U @ image, size=9)

        ns.program(net, np.ones((4, 4, 3)))
    """,
    # Reading networks
    "python_network_called": """
        net = ns.zoo.mlp()
        y = net(np.array(x))
    """,
    "python_network_of_two_inputs": """
        @ns.network
        def net(x, y):
            return v @ ns.relu(U @ x + U @ y)

        ns.program(net, x)
    """,
    "python_no_network": """
        def net(x):
            return v @ ns.relu(U @ x)

        ns.simulate(net, [x], width=10)
    """,
    "python_no_input": """
        ns.program(ns.zoo.mlp())
    """,
    "python_width_zero": """
        ns.simulate(ns.zoo.mlp(), [x], width=0)
    """,
    "python_width_not_an_integer": """
        ns.simulate(ns.zoo.mlp(), [x], width=1.5)
    """,
    "python_width_unknown": """
        ns.simulate(ns.zoo.mlp(), [x], width={"n": 10, "m": 10})
    """,
    "python_width_missing": """
        ns.simulate(ns.zoo.mlp(depth=2), [x], width={"n1": 10})
    """,
    "python_samples_zero": """
        ns.simulate(ns.zoo.mlp(), [x], width=10, samples=0)
    """,
    "python_seed_negative": """
        ns.simulate(ns.zoo.mlp(), [x], width=10, seed=-1)
    """,
    "python_dtype_integer": """
        ns.simulate(ns.zoo.mlp(), [x], width=10, dtype="int32")
    """,
    "python_program_with_inputs": """
        program = ns.program(ns.zoo.mlp(), x)
        ns.simulate(program, [x], width=10)
    """,
    "python_program_without_output": """
        program = ns.parse("Input g :: G(n) ~ N(0, 1)")
        ns.simulate(program, width=10)
    """,
    "python_layernorm_of_zero": """
        ns.simulate(ns.zoo.layernorm_mlp(var_b=0.0), [[0.0, 0.0]], width=10)
    """,
    "python_batchnorm_of_equal_members": """
        ns.empirical_kernel(ns.zoo.batchnorm_mlp(), [np.ones((3, 2))], width=10)
    """,
    "python_unknown_variant": """
        ns.program(ns.zoo.mlp(), x).lower("netsr")
    """,
    "python_moment_in_plain_netsor": """
        @ns.network
        def net(x):
            h = U @ x
            return v @ (h / ns.dot(h, h))

        ns.program(net, x).lower("netsor")
    """,
    "moment_in_plain_netsor": """
        program = ns.parse('''Input g :: G(n) ~ N(0, 1)
        c := Moment(g*g)  # the square
        x := g/c
        ''')
        program.lower("netsor-minus")
    """,
    "python_function_outside_with_too_many_arguments": """
        ns.relu(1.0, 2.0)
    """,
}
