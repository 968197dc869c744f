//! What the cleaner reads: the live sectors of the objects that it merges.
//!
//! An object that is small or mostly live is read as a whole. Of others the directory is read, and
//! then the extents with live sectors; those that are near each other share a get. Everything is
//! verified, since the cleaner deletes what it has read.
//!
//! Gets are under way at the same time, as many as the limit of the background allows, and as long
//! as their bodies fit in memory for two objects.

use std::ops::Range;

use bytes::Bytes;
use forebay_base::sync::Arc;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::{JoinError, JoinSet};

use crate::client::Persist;
use crate::engine::Engine;
use crate::format::directory::{Extent, bytes_of, checksum_of};
use crate::format::{SECTOR_BYTES, WINDOW_SECTORS, names};
use crate::map::Object;
use crate::reader::damaged_block;
use crate::store::{StoreError, StoreErrorKind};

/// So many dead sectors are read along, because a get of its own costs more.
const GAP_SECTORS: u64 = WINDOW_SECTORS / 64;

/// Bodies of so many sectors are in memory at a time.
const ROOM_SECTORS: u64 = 2 * WINDOW_SECTORS;

/// An object, and its live extents with their bytes: a copy, which does not keep what is dead.
pub(crate) struct Survey {
    pub(crate) object: Object,
    pub(crate) live: Vec<(Extent, Bytes)>,
}

/// Extents that one get reads, and its bytes in the payload.
struct Part {
    extents: Vec<Extent>,
    bytes: Range<u64>,
}

/// Reads the live sectors of objects. `live` has all of them that are in the spans of the objects.
pub(crate) async fn survey(
    engine: &Arc<Engine>,
    objects: Vec<Object>,
    live: Vec<Range<u64>>,
) -> Result<Vec<Survey>, String> {
    let live = Arc::new(live);
    let room = Arc::new(Semaphore::new(ROOM_SECTORS as usize));
    let read = |object: Object| {
        let (engine, live, room) = (Arc::clone(engine), Arc::clone(&live), Arc::clone(&room));
        async move {
            let read = engine.survey_one(object, &live, &room).await;
            read.map_err(|error| {
                StoreError::new(error.kind(), format!("{}: {error}", names::data(&object)))
            })
        }
    };
    all(objects.into_iter().map(read)).await.map_err(|error| error.to_string())
}

/// The results of tasks, in any order. After an error the others end.
async fn all<T, F>(tasks: impl Iterator<Item = F>) -> Result<Vec<T>, StoreError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, StoreError>> + Send + 'static,
{
    let panicked = |error: JoinError| StoreError::new(StoreErrorKind::Other, error.to_string());
    let mut running: JoinSet<_> = tasks.collect();
    let mut found = Vec::with_capacity(running.len());
    while let Some(ended) = running.join_next().await {
        found.push(ended.map_err(panicked)??);
    }
    Ok(found)
}

impl Engine {
    async fn survey_one(
        self: &Arc<Self>,
        object: Object,
        live: &[Range<u64>],
        room: &Semaphore,
    ) -> Result<Survey, StoreError> {
        // Held until the live bytes are copied. Once for all gets of the object, so that objects do
        // not wait for each other.
        let _room;
        let bodies = if is_read_as_a_whole(&object) {
            _room = take(room, u64::from(object.payload_sectors)).await;
            let (payload, extents) = self.read_object(&object).await?;
            let bytes = 0..payload.len() as u64;
            vec![(Part { extents: extents.to_vec(), bytes }, payload)]
        } else {
            let known = self.directories.get(&object);
            let extents = match known {
                Some(extents) => extents,
                None => self.fetch_directory(&object, Persist::Background).await?,
            };
            let read = |part| {
                let engine = Arc::clone(self);
                async move { engine.read_part(&object, part).await }
            };
            let parts = parts(&extents, live);
            let bytes: u64 = parts.iter().map(|part| part.bytes.end - part.bytes.start).sum();
            _room = take(room, bytes / SECTOR_BYTES).await;
            all(parts.into_iter().map(read)).await?
        };
        let mut kept = Vec::new();
        for (part, body) in &bodies {
            for extent in &part.extents {
                for (start, end) in overlaps(live, extent) {
                    let offset = extent.offset + (start - extent.start) as u16;
                    let sectors = (end - start) as u16;
                    let at = (bytes_of(offset) - part.bytes.start) as usize;
                    let bytes = &body[at..at + bytes_of(sectors) as usize];
                    let extent = Extent { start, sectors, offset, checksum: 0 };
                    kept.push((extent, Bytes::copy_from_slice(bytes)));
                }
            }
        }
        Ok(Survey { object, live: kept })
    }

    /// Reads a part of an object, and verifies its extents.
    async fn read_part(&self, object: &Object, part: Part) -> Result<(Part, Bytes), StoreError> {
        let key = names::data(object);
        let get = || self.client.get_range(&key, part.bytes.clone(), Persist::Background);
        let read = |body: Bytes| {
            let is_sound = |extent: &Extent| {
                let at = (bytes_of(extent.offset) - part.bytes.start) as usize;
                checksum_of(&body[at..at + bytes_of(extent.sectors) as usize]) == extent.checksum
            };
            if part.extents.iter().all(is_sound) { Ok(body) } else { Err(damaged_block()) }
        };
        let body = self.client.fetch_sound(get, read).await??;
        Ok((part, body))
    }
}

/// Room for the bodies of an object.
async fn take(room: &Semaphore, sectors: u64) -> SemaphorePermit<'_> {
    let sectors = sectors.min(ROOM_SECTORS) as u32;
    room.acquire_many(sectors).await.expect("it is never closed")
}

/// Whether one get of everything is better than one of the directory and others.
fn is_read_as_a_whole(object: &Object) -> bool {
    let (all, live) = (u64::from(object.payload_sectors), u64::from(object.live));
    all <= 2 * GAP_SECTORS || live * 2 > all
}

/// The live parts of an extent.
fn overlaps<'a>(
    live: &'a [Range<u64>],
    extent: &'a Extent,
) -> impl Iterator<Item = (u64, u64)> + 'a {
    let from = live.partition_point(|range| range.end <= extent.start);
    let within = live[from..].iter().take_while(|range| range.start < extent.end());
    within.map(|range| (range.start.max(extent.start), range.end.min(extent.end())))
}

/// The gets of the extents that have live sectors.
fn parts(extents: &[Extent], live: &[Range<u64>]) -> Vec<Part> {
    let mut found: Vec<Part> = Vec::new();
    for extent in extents.iter().filter(|extent| overlaps(live, extent).next().is_some()) {
        let start = bytes_of(extent.offset);
        let end = start + bytes_of(extent.sectors);
        let gap = bytes_of(GAP_SECTORS as u16);
        match found.last_mut() {
            Some(part) if start <= part.bytes.end + gap => {
                part.bytes.end = end;
                part.extents.push(*extent);
            }
            _ => found.push(Part { extents: vec![*extent], bytes: start..end }),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_of_extents_that_have_live_sectors_and_are_near() {
        // Extents of 32 sectors each, with gaps in the addresses and none in the payload.
        let extent = |at: u64| Extent {
            start: at * 100,
            sectors: 32,
            offset: (at * 32) as u16,
            checksum: 0,
        };
        let extents: Vec<_> = (0..40).map(extent).collect();
        let live = [0..1, 131..140, 150..250, 450..500, 2000..2010, 3900..3932];
        let found: Vec<_> = parts(&extents, &live)
            .into_iter()
            .map(|part| {
                let starts: Vec<_> = part.extents.iter().map(|extent| extent.start).collect();
                (starts, part.bytes)
            })
            .collect();
        let block = 32 * 4096;
        assert_eq!(
            found,
            [
                (vec![0, 100, 200], 0..3 * block),
                (vec![2000], 20 * block..21 * block),
                (vec![3900], 39 * block..40 * block),
            ]
        );
        assert_eq!(overlaps(&live, &extent(1)).collect::<Vec<_>>(), [(131, 132)]);
        assert_eq!(overlaps(&live, &extent(2)).collect::<Vec<_>>(), [(200, 232)]);
        assert!(overlaps(&live, &extent(4)).next().is_none());
    }
}
