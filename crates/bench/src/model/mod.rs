//! What more CPUs would do: a closed queueing network, solved by mean value analysis.
//!
//! A machine of `n` CPUs is `n` customers who think (work that needs nobody else) and
//! visit stations (locks, shared cache lines), one customer at a time each. See
//! `docs/benchmarks.md` for what this can and cannot say.

pub(crate) mod costs;
pub(crate) mod mva;
