"""What torch's flash attention does with rows end to end, on any device."""

import torch


def slowly(queries, keys, values, pairs, scale, *, causal):
    """What the kernel does, row by row, on any device."""
    heads = queries.shape[0]
    keys, values = (x.repeat_interleave(heads // x.shape[0], 0) for x in (keys, values))
    ends = [each.ends.tolist() for each in (pairs.asking, pairs.read)]
    used = pairs.read.used
    counts = [b - a for a, b in zip(ends[1], ends[1][1:], strict=False)]
    counts = counts if used is None else used.tolist()
    assert max(b - a for a, b in zip(ends[0], ends[0][1:], strict=False)) <= pairs.asking.longest
    assert max(counts) <= pairs.read.longest
    read, weight = [], []
    for row in range(len(ends[0]) - 1):
        asking = slice(ends[0][row], ends[0][row + 1])
        own = slice(ends[1][row], ends[1][row] + counts[row])
        scores = queries[:, asking] @ keys[:, own].transpose(1, 2) * scale
        if causal:
            ones = torch.ones(scores.shape[1:], dtype=torch.bool)
            scores = scores.masked_fill(~ones.tril(scores.shape[2] - scores.shape[1]), -torch.inf)
        read.append((scores.softmax(-1) @ values[:, own]).transpose(0, 1))
        weight.append(scores.logsumexp(-1).T)
    return torch.cat(read), torch.cat(weight)
