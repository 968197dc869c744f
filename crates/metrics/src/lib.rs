//! Metrics of a running process over HTTP: OpenMetrics text for monitors, and a page with live
//! plots for people.
//!
//! * [`Snapshot`]: metrics at one instant, by name and labels, and their text ([`Format`]).
//! * [`Server`]: serves `/metrics`, `/stats.json` and the page at `/`, from a [`Source`].
//!
//! The crate knows neither pools nor caches: the process that has them implements [`Source`]. It
//! is the only crate with an HTTP server. Its async runtime runs on one thread of its own
//! (decision 134).

mod encode;
mod names;
mod page;
mod server;
mod snapshot;

pub use encode::Format;
pub use server::{Limits, Server, ServerError, ServerOptions, Source};
pub use snapshot::{Labels, Snapshot};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
