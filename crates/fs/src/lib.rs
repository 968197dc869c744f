//! Files on a pool's dataset, with the semantics of POSIX.
