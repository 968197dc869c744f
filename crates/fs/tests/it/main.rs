//! Tests of files, on pools on memory devices.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "plain threads in tests")]

mod basic;
mod common;
mod crash;
mod large;
mod lost;
mod random;
mod threads;
mod twin;
mod waiting;
