//! Predicts more CPUs: a closed queueing network, solved by mean value analysis.
//!
//! A machine of `n` CPUs is `n` customers. They think (work without contention) and visit stations
//! (locks, shared cache lines), which serve one customer at a time. `docs/benchmarks.md` lists the
//! limits of this model.

pub(crate) mod costs;
pub(crate) mod mva;
