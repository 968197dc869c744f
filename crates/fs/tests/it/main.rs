//! Tests of file systems on pools on memory devices.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "plain threads in tests")]

mod ace;
mod basic;
mod common;
mod crash;
mod failmode;
mod gone;
mod large;
mod model;
mod non_blocking;
mod paths;
mod random;
mod ranges;
mod slowed;
mod threads;
mod writeback_errors;
