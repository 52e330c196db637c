"""Bytes of a clip in, upright RGB frames with true times and a sound track out. Knows no model.

`deployment.VideoDecoder` is the replica; `clip.decode_clip` and `sound.decode_sound` are the same
work as plain functions. On the way: `probe` -> `packets` -> `timeline` -> `sampling` -> `plan` ->
`decode`.
"""
