//! A test double of a device: it keeps submitted requests until the test completes them.
//!
//! A flush completes at once, before `submit` returns. The model checks use it too.
#![allow(dead_code, reason = "the model checks use a part of it")]

use forebay_base::sync::{Arc, Mutex};
use forebay_io::{
    Device, DeviceInfo, DeviceStats, Engine, Error, ErrorKind, Health, Request, Waiter,
};

pub(crate) struct Double {
    info: DeviceInfo,
    waiting: Mutex<Vec<Request>>,
}

impl Double {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { info: info(), waiting: Mutex::named("double", Vec::new()) })
    }

    /// Returns the number of pending requests.
    pub(crate) fn len(&self) -> usize {
        self.waiting.lock().len()
    }

    /// Takes the `nth` pending request.
    pub(crate) fn take(&self, nth: usize) -> Option<Request> {
        let mut waiting = self.waiting.lock();
        (nth < waiting.len()).then(|| waiting.remove(nth))
    }

    /// Takes the oldest pending request.
    pub(crate) fn first(&self) -> Request {
        self.take(0).expect("something waits")
    }

    /// Completes all pending requests, and those that they cause, with success.
    pub(crate) fn finish_all(&self) {
        while let Some(request) = self.take(0) {
            request.finish(Ok(()));
        }
    }
}

/// An error of the double for `request`.
pub(crate) fn failure(request: &Request, kind: ErrorKind) -> Error {
    let range = (request.offset(), request.len());
    Error::new(kind, request.op(), &info().name, range, "the test says so")
}

/// Completes `request` with an error.
pub(crate) fn fail(request: Request, kind: ErrorKind) {
    let error = failure(&request, kind);
    request.finish(Err(error));
}

fn info() -> DeviceInfo {
    DeviceInfo {
        name: "double".into(),
        size_bytes: 1 << 30,
        sector_bytes: 512,
        physical_bytes: 512,
        read_only: false,
        direct: false,
        buffered: None,
        block_device: false,
        engine: Engine::Memory,
        append_only: None,
    }
}

impl Device for Double {
    fn submit(&self, request: Request) {
        match request.op() {
            forebay_io::Op::Flush => request.finish(Ok(())),
            _ => self.waiting.lock().push(request),
        }
    }

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn health(&self) -> Health {
        Health::Healthy
    }

    fn stats(&self) -> DeviceStats {
        DeviceStats::new(self.info.engine.clone(), Vec::new())
    }

    fn help(&self, _: &Waiter) {}

    fn close(&self) {}
}
