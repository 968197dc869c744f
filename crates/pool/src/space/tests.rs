//! Tests of the space as a whole, against a device in memory and a naive model.

mod audit;
mod crash;
mod discard;
mod fixture;
mod hostile;
mod model;
mod unload;
