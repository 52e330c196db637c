"""Images and frames to embedding rows: decode, resize, patchify, vision tower."""
