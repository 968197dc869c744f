//! An operation: one or more merged requests that a submission queue hands to its engine.

use crate::error::Error;
use crate::priority::Priority;
use crate::request::{Op, Request};

/// Most requests of one operation.
pub const MAX_MERGED: usize = 64;

/// One operation on the medium: `len` bytes at `offset`, scattered over `requests`.
#[derive(Debug)]
pub struct Operation {
    /// The kind of operation.
    pub op: Op,
    /// The first byte; 0 for a flush.
    pub offset: u64,
    /// Number of bytes, the sum over the requests; 0 for a flush.
    pub len: u64,
    /// The class whose permit it holds.
    pub priority: Priority,
    /// The requests by offset, each beginning at the end of the one before.
    pub requests: Requests,
}

impl Operation {
    /// Completes each request with `result`. An error names each request's own range.
    pub fn finish(self, result: Result<(), Error>) {
        match self.requests {
            Requests::One(request) => request.finish(result),
            Requests::Many(requests) => {
                for request in requests {
                    let range = (request.offset(), request.len());
                    request.finish(result.clone().map_err(|error| error.with_range(range)));
                }
            }
        }
    }

    /// Completes the requests of an operation that moved only its first `moved` bytes and then
    /// failed with `error`. Requests within these bytes succeed.
    pub fn finish_short(self, moved: u64, error: &Error) {
        let mut left = moved;
        for request in self.requests {
            let range = (request.offset(), request.len());
            let whole = range.1 <= left && range.1 > 0;
            left = if whole { left - range.1 } else { 0 };
            request.finish(if whole { Ok(()) } else { Err(error.clone().with_range(range)) });
        }
    }
}

/// The requests of one operation. A single one needs no allocation.
#[derive(Debug)]
pub enum Requests {
    /// One request, the common case.
    One(Request),
    /// At least two requests, at most [`MAX_MERGED`].
    Many(Vec<Request>),
}

impl Requests {
    /// Returns the requests.
    pub fn as_slice(&self) -> &[Request] {
        match self {
            Self::One(request) => std::slice::from_ref(request),
            Self::Many(requests) => requests,
        }
    }

    pub(super) fn push(&mut self, request: Request) {
        match self {
            Self::Many(requests) => requests.push(request),
            Self::One(_) => {
                let Self::One(first) = std::mem::replace(self, Self::Many(Vec::new())) else {
                    unreachable!("matched")
                };
                *self = Self::Many(vec![first, request]);
            }
        }
    }

    /// Moves the requests from `ahead` on, which were found in descending order, before the others.
    pub(super) fn order(&mut self, ahead: usize) {
        if let Self::Many(requests) = self {
            requests[ahead..].reverse();
            requests.rotate_left(ahead);
        }
    }

    /// Returns the requests, mutably.
    pub fn as_mut_slice(&mut self) -> &mut [Request] {
        match self {
            Self::One(request) => std::slice::from_mut(request),
            Self::Many(requests) => requests,
        }
    }
}

impl IntoIterator for Requests {
    type Item = Request;
    type IntoIter = std::iter::Chain<std::option::IntoIter<Request>, std::vec::IntoIter<Request>>;

    fn into_iter(self) -> Self::IntoIter {
        let (one, many) = match self {
            Self::One(request) => (Some(request), Vec::new()),
            Self::Many(requests) => (None, requests),
        };
        one.into_iter().chain(many)
    }
}
