//! A device that is a map of pages.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_base::sync::Mutex;
use forebay_io::{Device, DeviceInfo, DeviceStats, Engine, Health, Op, Request, Waiter};

const PAGE: usize = 4096;

/// Pages by number. Missing pages are zero.
pub(crate) type Pages = BTreeMap<u64, Arc<[u8]>>;

/// A device whose writes take effect at once and can be inspected.
pub(crate) struct PageMapDevice {
    info: DeviceInfo,
    pub(crate) pages: Mutex<Pages>,
}

impl PageMapDevice {
    pub(crate) fn new(size_bytes: u64, pages: Pages) -> Self {
        let info = DeviceInfo {
            name: "plain".into(),
            size_bytes,
            sector_bytes: PAGE as u32,
            physical_bytes: PAGE as u32,
            read_only: false,
            direct: false,
            buffered: None,
            block_device: false,
            engine: Engine::Memory,
            append_only: None,
        };
        Self { info, pages: Mutex::named("plain", pages) }
    }
}

impl Device for PageMapDevice {
    fn submit(&self, mut request: Request) {
        let first = request.offset() / PAGE as u64;
        match request.op() {
            Op::Read => {
                let pages = self.pages.lock();
                let out = request.bytes_mut().expect("a read's own");
                for (number, out) in (first..).zip(out.chunks_mut(PAGE)) {
                    match pages.get(&number) {
                        Some(page) => out.copy_from_slice(page),
                        None => out.fill(0),
                    }
                }
            }
            Op::Write => {
                let mut pages = self.pages.lock();
                let payload = request.payload().expect("a write's").bytes();
                for (number, page) in (first..).zip(payload.chunks(PAGE)) {
                    pages.insert(number, page.into());
                }
            }
            Op::Flush | Op::Discard => {}
        }
        request.finish(Ok(()));
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
