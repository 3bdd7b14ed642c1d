"""The Netsor language: types, statements, type checker, text form and variants.

| file | what it holds |
| --- | --- |
| `types` | A, G, H, C and K, with index shapes; inference of the types of expressions |
| `program` | statements and `Program` |
| `expr` | expressions: names, numbers and operations on them |
| `ops` | classes of operations: coordinatewise functions, index maps, functions of several members |
| `functions` | the functions of the language by name, with their facts |
| `index_maps` | `sum`, `window`, `stack`, indexing and other linear maps on index axes |
| `facts`, `analysis` | derivative, kinks and growth of functions, and of expressions |
| `piecewise_polynomials`, `exp_terms` | functions as sums of terms that have closed forms |
| `symbols`, `numerical_derivatives` | arithmetic and derivatives of expressions; of users' functions |
| `blocks`, `evaluate`, `array_api` | arrays with index axes; values of expressions; array libraries |
| `type_checker` | one method per rule of the paper's formal specification |
| `input_laws` | means and covariances of inputs, and whether they are valid |
| `controlled` | whether a function grows slowly enough for the Master Theorem |
| `parse`, `syntax` | text to program: the entry; lines, their errors and the grammar's rules |
| `show`, `program_html` | program to text and to a drawing |
| `rewrite` | term rewriting: tables of equations, and the simplifying ones |
| `expand`, `lower` | blocks written out; the variants Netsor-, Netsor and Netsor+ |
| `tangent`, `tangent_terms` | the derivative of a program along its parameters, in normal form |
| `learning_rates` | learning rates of parameters, and parametrisations |
| `components` | connected components |
"""

from netsor.lang.blocks import Block
from netsor.lang.evaluate import evaluate
from netsor.lang.parse import parse, parse_expr
from netsor.lang.program import Program
from netsor.lang.show import show
from netsor.lang.type_checker import check
from netsor.lang.types import A, C, G, H

__all__ = ["A", "Block", "C", "G", "H", "Program", "check", "evaluate", "parse", "parse_expr", "show"]
