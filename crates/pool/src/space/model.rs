//! Model check: discards in flight against commits that allocate all space.

use forebay_base::sync::thread::spawn_named;
use forebay_base::sync::{Arc, Mutex};
use zerocopy::little_endian::{U32, U64};

use super::{DeviceSpan, Space, SpaceRead, SpaceWrite};
use crate::format::{BlockKind, BlockPtrPhys, DvaPhys};
use crate::store::Allocate;
use crate::{Error, ErrorKind, Result};

const SCHEDULES: usize = 10_000;
const SECTOR: u64 = 4096;
const START: u64 = 256 << 10;
const BYTES: u64 = 2 << 20;
/// Content of a discarded sector.
const DISCARDED: u64 = 0;

/// By sector: the txg that wrote it.
struct Medium(Mutex<Vec<u64>>);

impl Medium {
    fn set(&self, offset: u64, bytes: u64, value: u64) {
        let (from, to) = ((offset - START) / SECTOR, (offset - START + bytes) / SECTOR);
        self.0.lock()[from as usize..to as usize].fill(value);
    }

    fn assert_is(&self, offset: u64, bytes: u64, value: u64) {
        let (from, to) = ((offset - START) / SECTOR, (offset - START + bytes) / SECTOR);
        let content = self.0.lock();
        let content = &content[from as usize..to as usize];
        assert!(content.iter().all(|found| *found == value), "{bytes} bytes at {offset:#x}");
    }
}

/// All metaslabs of the check are in memory.
struct NoReader;

impl SpaceRead for NoReader {
    fn read(&self, pointer: &BlockPtrPhys) -> Result<Vec<u8>> {
        Err(Error::new(ErrorKind::Corrupt, format!("a read of {pointer:?}")))
    }
}

/// Notes the blocks of the space maps, which a commit writes.
struct Writer<'a>(&'a Medium, Vec<(u64, u64)>);

impl SpaceWrite for Writer<'_> {
    fn write_at(&mut self, places: [DvaPhys; 2], content: &[u8], txg: u64) -> Result<BlockPtrPhys> {
        let bytes = content.len() as u64;
        for dva in places.iter().filter_map(|place| place.get()) {
            self.0.set(dva.offset, bytes, txg);
            self.1.push((dva.offset, bytes));
        }
        Ok(BlockPtrPhys {
            copies: places,
            birth_txg: U64::new(txg),
            logical_bytes: U32::new(content.len() as u32),
            physical_bytes: U32::new(content.len() as u32),
            kind: BlockKind::Space as u8,
            fill: U64::new(1),
            ..BlockPtrPhys::HOLE
        })
    }
}

/// Commits a txg that frees `freed` and then allocates up to `most` blocks.
fn commit(
    space: &Mutex<Space>,
    medium: &Medium,
    txg: u64,
    freed: &[(u64, u64)],
    most: usize,
) -> Vec<(u64, u64)> {
    let mut space = space.lock();
    space.begin(txg).unwrap();
    for &(offset, bytes) in freed {
        space.free(crate::format::Dva { device: 0, offset }, bytes);
    }
    let mut blocks = Vec::new();
    while blocks.len() < most
        && let Ok(places) = space.allocate(16 * SECTOR, 1)
    {
        let dva = places[0].get().unwrap();
        medium.set(dva.offset, 16 * SECTOR, txg);
        blocks.push((dva.offset, 16 * SECTOR));
    }
    let mut writer = Writer(medium, Vec::new());
    space.sync(txg, &mut writer).unwrap();
    // Nothing that this commit has written was discarded.
    blocks.iter().chain(&writer.1).for_each(|(at, bytes)| medium.assert_is(*at, *bytes, txg));
    space.committed(txg).unwrap();
    blocks
}

/// Whatever the schedule, a discard never meets what a commit writes into the same space, a commit
/// gets all space, and nobody waits forever.
#[test]
fn a_discard_never_meets_a_block() {
    let body = || {
        let span = DeviceSpan { device: 0, start: START, end: START + BYTES, append_only: None };
        let mut space = Space::create(&[span], SECTOR, Box::new(NoReader)).unwrap();
        space.note_discards(0, true);
        let medium = Arc::new(Medium(Mutex::named("medium", vec![DISCARDED; 512])));
        let space = Arc::new(Mutex::named("space", space));
        let all = commit(&space, &medium, 1, &[], usize::MAX);
        commit(&space, &medium, 2, &all, 0);
        for txg in 3..5 {
            commit(&space, &medium, txg, &[], 0);
        }
        let trim = {
            let (space, medium) = (Arc::clone(&space), Arc::clone(&medium));
            let trim = move || {
                let mut list = space.lock().noted_discards(0, SECTOR).expect("sound");
                for _ in 0..3 {
                    let Some(slice) = space.lock().hold(&mut list, 48 * SECTOR).unwrap() else {
                        break;
                    };
                    for (dva, bytes) in &slice.ranges {
                        medium.set(dva.offset, *bytes, DISCARDED);
                    }
                    drop(slice);
                    space.lock().release_held(false).unwrap();
                }
            };
            spawn_named("trim", trim).unwrap()
        };
        let some = commit(&space, &medium, 5, &[], usize::MAX);
        assert_eq!(some.len(), all.len(), "held space is not lost to a commit");
        let more = commit(&space, &medium, 6, &[], usize::MAX);
        trim.join().unwrap();
        some.iter().for_each(|(at, bytes)| medium.assert_is(*at, *bytes, 5));
        more.iter().for_each(|(at, bytes)| medium.assert_is(*at, *bytes, 6));
    };
    shuttle::check_pct(body, SCHEDULES, 4);
}
