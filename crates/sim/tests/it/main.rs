//! The pool under crashes and faults.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests start threads, wait and watch the time themselves"
)]

mod crash;
mod faults;
mod full;
mod hostile;
mod soak;
mod threads;
