//! Looks for the log on a device that comes back.

use super::*;

const FSYNCS: u64 = 40;
const EXTENT_BYTES: u64 = 64 << 10;

/// Two vdevs. The second one has two sides, of which the first lacks all.
struct TwoVdevs([Arc<OneDevice>; 3]);

impl LogStorage for TwoVdevs {
    fn alloc(&self, bytes: usize) -> Result<Buffer> {
        self.0[0].alloc(bytes)
    }

    fn sides(&self) -> usize {
        2
    }

    fn read(&self, dva: Dva, side: usize, buffer: Buffer) -> Result<Buffer> {
        let at = if dva.device == 0 { 0 } else { 1 + side };
        self.0[at].read(dva, side, buffer)
    }

    fn write(&self, writes: Vec<(Dva, Buffer)>) -> Result<()> {
        writes.into_iter().try_for_each(|write| {
            let at = if write.0.device == 0 { 0 } else { 2 };
            self.0[at].write(vec![write])
        })
    }

    fn flush(&self, _dva: Dva) -> Result<()> {
        Ok(())
    }

    fn flush_failures(&self) -> u64 {
        0
    }
}

#[test]
fn a_device_has_the_log_if_any_side_of_the_other_vdevs_has_the_rest() {
    let media = [memory(), memory(), memory()];
    let storage = Arc::new(TwoVdevs(media.clone()));
    let extents: Vec<_> = (0..8)
        .map(|n| {
            let dva = Dva { device: (n % 2) as u16, offset: (1 << 20) + n / 2 * EXTENT_BYTES };
            Extent { place: DvaPhys::new(dva), bytes: EXTENT_BYTES }
        })
        .collect();
    let tunables = Arc::new(LogTunables::default());
    let log = IntentLog::create(&extents, 0xfeed, 1, storage, tunables).unwrap();
    let versions = Versions::default();
    versions.0.borrow_mut().insert(5, 9);
    sync(&log, 1);
    for _ in 0..FSYNCS {
        log.append(2, DATASET, 5, Change::Write { offset: 0, len: 10 });
        assert_eq!(log.commit(Some((DATASET, 5)), &versions), Committed::Durable);
    }
    assert!(log.counters().total(LogCounters::BYTES) > 2 * EXTENT_BYTES, "in three extents");
    let reads = Cell::new(0);
    let is_on = |vdev, medium: &OneDevice| {
        let read = |offset, bytes| {
            reads.set(reads.get() + 1);
            medium.read(Dva { device: vdev, offset }, 0, medium.alloc(bytes)?)
        };
        log.is_on(vdev, &read).unwrap()
    };
    assert!(is_on(0, &media[0]), "the other side of the other vdev has the rest");
    assert!(reads.get() < FSYNCS / 4, "{} reads for {FSYNCS} blocks", reads.get());
    assert!(!is_on(0, &media[1]), "it is empty");
    assert!(is_on(1, &media[2]), "it is the side that has all");
    assert!(!is_on(1, &media[1]), "it is the side that lacks all");
}
