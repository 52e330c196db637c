"""Bytes of a clip in, upright RGB frames with true times and a sound track out. Knows no model.

`deployment.VideoDecoder` is the replica; `decode.decode_clip` and `sound.decode_sound` are the
same work as plain functions. On the way: `probe` (headers) -> `packets` (index) -> `timeline`
(when each frame is shown) -> `sampling` (which are wanted) -> `plan` (runs and chunks of packets)
-> `execute` (decoding) -> `clip`.
"""
