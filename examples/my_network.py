"""The tutorial's network: a recurrent network that reads a sentence from both ends."""

import netsor as ns

forward, backward = ns.RNNCell(ns.tanh, name="f"), ns.RNNCell(ns.tanh, name="b")
v, u = ns.Matrix(1.0, rows=1), ns.Matrix(1.0, rows=1)


def read(cell, tokens):
    """The states of a cell after each token."""
    state, states = 0, []
    for token in tokens:
        state = cell(state, token)
        states.append(state)
    return states


@ns.network
def birnn(tokens):  # tokens: (T, m), one sentence
    ahead = read(forward, tokens)
    back = read(backward, list(tokens)[::-1])[::-1]
    return v @ ns.stack(ahead) + u @ ns.stack(back)  # one scalar per token, from both directions


if __name__ == "__main__":
    from netsor.data import sentences

    print(ns.program(birnn, sentences()[0].vectors[:2, :3]))
