//! Forebay's files through FUSE.
