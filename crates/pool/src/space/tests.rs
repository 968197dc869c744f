//! Tests of the space as a whole, against a device in memory and a naive twin.

mod crash;
mod hostile;
mod twin;
mod world;
