//! The server as clients meet it, over sockets.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests wait and watch the time themselves"
)]

mod answers;
mod client;
mod hostile;
