//! Devices in memory.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use forebay_io::record::{Image, RecordDevice};
use forebay_io::{
    Decorator, Device, DeviceInfo, DeviceStats, Engine, Error, ErrorKind, Health, Op, Request,
    Waiter,
};

/// The thread that commits transaction groups.
const SYNC_THREAD: &str = "forebay-sync";

/// A device that executes each request in `submit`. It has no threads, so that thousands of images
/// are mounted quickly.
pub(super) struct ImageDevice {
    info: DeviceInfo,
    bytes: Mutex<Vec<u8>>,
}

impl ImageDevice {
    pub(super) fn new(image: &Image) -> Self {
        let mut bytes = vec![0; image.size_bytes() as usize];
        for (offset, sector) in image.sectors() {
            bytes[offset as usize..][..sector.len()].copy_from_slice(sector);
        }
        let info = DeviceInfo {
            name: "image".into(),
            size_bytes: image.size_bytes(),
            sector_bytes: image.sector_bytes(),
            physical_bytes: 4096,
            read_only: false,
            direct: false,
            buffered: None,
            block_device: false,
            engine: Engine::Memory,
            append_only: None,
        };
        Self { info, bytes: Mutex::new(bytes) }
    }

    fn execute(&self, request: &mut Request) -> Result<(), Error> {
        let (op, offset, len) = (request.op(), request.offset(), request.len());
        let end = offset.checked_add(len).filter(|end| *end <= self.info.size_bytes);
        let range = offset as usize..end.ok_or_else(|| self.error(op, (offset, len)))? as usize;
        let mut bytes = self.bytes.lock().expect("no thread panics with the content");
        match op {
            Op::Read => {
                let out = request.bytes_mut().ok_or_else(|| self.error(op, (offset, len)))?;
                out.copy_from_slice(&bytes[range]);
            }
            Op::Write => {
                let payload = request.payload().ok_or_else(|| self.error(op, (offset, len)))?;
                bytes[range].copy_from_slice(payload.bytes());
            }
            Op::Discard => bytes[range].fill(0),
            Op::Flush => {}
        }
        Ok(())
    }

    fn error(&self, op: Op, range: (u64, u64)) -> Error {
        Error::new(ErrorKind::InvalidRequest, op, &self.info.name, range, "outside of the image")
    }
}

impl Device for ImageDevice {
    fn submit(&self, mut request: Request) {
        let result = self.execute(&mut request);
        request.finish(result);
    }

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn health(&self) -> Health {
        Health::Healthy
    }

    fn stats(&self) -> DeviceStats {
        DeviceStats::new(Engine::Memory, Vec::new())
    }

    fn help(&self, _waiter: &Waiter) {}

    fn close(&self) {}
}

/// A recorded device that can hold up the commit of a transaction group.
pub(super) struct GateDevice {
    inner: Arc<RecordDevice>,
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    closed: bool,
    /// A commit waits, or the last one has ended without.
    is_there: bool,
}

impl GateDevice {
    pub(super) fn new(inner: Arc<RecordDevice>) -> Self {
        Self { inner, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Closes the gate. From now on a commit waits at its next request.
    pub(super) fn shut(&self) {
        *self.lock() = GateState { closed: true, is_there: false };
    }

    /// Opens the gate.
    pub(super) fn open(&self) {
        self.lock().closed = false;
        self.changed.notify_all();
    }

    /// Returns when a commit waits or has ended.
    pub(super) fn wait_for_commit(&self) {
        let waited = self.changed.wait_while(self.lock(), |state| !state.is_there);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// A commit has reached the gate, or has ended.
    pub(super) fn note_commit(&self) {
        self.lock().is_there = true;
        self.changed.notify_all();
    }

    fn pass(&self) {
        if std::thread::current().name() != Some(SYNC_THREAD) {
            return;
        }
        self.note_commit();
        let waited = self.changed.wait_while(self.lock(), |state| state.closed);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Decorator for GateDevice {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn decorate(&self, request: Request) -> Option<Request> {
        self.pass();
        Some(request)
    }
}
