//! Roots, rings and records of any content.

use forebay_base::rng::SmallRng;
use proptest::prelude::*;

use super::crash::World;
use super::*;

/// Roots and rings of any content: no panic, no end without end, and nothing from a block that is
/// not whole.
fn hostile(seed: u64, arena: &Arc<Arena>) {
    let mut rng = SmallRng::from_seed(seed);
    let mut world = World::new(arena, 10);
    for _ in 0..200 {
        world.step(&mut rng);
    }
    let (root, image) = world.end();
    let device = medium("image");
    image.write_to(&device, arena).unwrap();
    let storage = Arc::new(OneDevice::new(Arc::new(device), arena));
    let sound = replay_all(&open(&storage, &root), &root);
    for _ in 0..30 {
        let mut bytes = zerocopy::IntoBytes::as_bytes(&root).to_vec();
        // Mostly in the part that is used.
        let within = if rng.below(2) == 0 { 112 } else { bytes.len() as u64 };
        let at = rng.below(within) as usize;
        bytes[at] ^= 1 << rng.below(8);
        let bad = zerocopy::FromBytes::read_from_bytes(&bytes[..]).unwrap();
        let tunables = Arc::new(LogTunables::default());
        let dyn_storage = storage.clone() as Arc<dyn LogStorage>;
        let Ok(log) = IntentLog::open(&bad, 0, dyn_storage, tunables) else { continue };
        let mut replay = log.replay(&bad);
        while let Ok(true) = replay.next_batch() {
            while let Ok(Some(_)) = replay.next() {}
        }
    }
    // Flipped bits in the ring: the log is as it was up to some place.
    let mut buffer = arena.alloc(512).unwrap();
    for _ in 0..10 {
        let places = open(&storage, &root).home.places(rng.below(256), 1)[0].0;
        let offset = places.offset / 512 * 512 + 512 * rng.below(30);
        buffer = storage.read(Dva { device: 0, offset }, 0, buffer).unwrap();
        buffer[rng.below(512) as usize] ^= 1 << rng.below(8);
        storage.device.run(Request::write(offset, buffer)).result.unwrap();
        buffer = arena.alloc(512).unwrap();
        let found = replay_all(&open(&storage, &root), &root);
        assert!(sound.starts_with(&found), "seed {seed}: something that was never logged");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn damage_ends_the_log_and_nothing_else(seed in any::<u64>()) {
        hostile(seed, &arena());
    }
}

proptest! {
    #[test]
    fn records_come_back_as_they_were(
        of in any::<[u64; 4]>(),
        numbers in (0u64..1 << 62, 0u64..1 << 62, any::<u8>()),
        name in prop::collection::vec(any::<u8>(), 0..300),
        value in prop::collection::vec(any::<u8>(), 0..3000),
        cut in any::<prop::sample::Index>(),
    ) {
        let (name, value) = (&name[..], &value[..]);
        let (offset, len, record_shift) = numbers;
        let records = [
            LogRecord::Create { kind: ObjectKind::Zap, record_shift, attributes: value },
            LogRecord::Destroy,
            LogRecord::SetAttributes { attributes: value },
            LogRecord::Write { offset, bytes: value },
            LogRecord::Truncate { size: offset },
            LogRecord::Punch { offset, len },
            LogRecord::ZapInsert { name, value },
            LogRecord::ZapUpdate { name, value },
            LogRecord::ZapRemove { name },
        ];
        let [txg, dataset, object, serial] = of;
        let entries = records.map(|record| LogEntry { txg, dataset, object, serial, record });
        let mut bytes = Vec::new();
        for entry in &entries {
            prop_assert!(entry.encode(&mut bytes));
        }
        let mut rest = &bytes[..];
        for entry in &entries {
            prop_assert_eq!(LogEntry::parse(&mut rest).unwrap(), Some(*entry));
        }
        prop_assert!(rest.is_empty());
        // Cut off anywhere, it is an error sooner or later, never a panic.
        let mut rest = &bytes[..cut.index(bytes.len())];
        while let Ok(Some(_)) = LogEntry::parse(&mut rest) {}
    }

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..400), kind in 0u8..12) {
        let mut bytes = bytes;
        if bytes.len() > 48 {
            // Past the checks of kind and lengths more often than by chance.
            bytes[40] = kind;
            let lengths = [bytes[42] % 16, 0, bytes[44], 0, 0, 0];
            bytes[42..48].copy_from_slice(&lengths);
        }
        let mut rest = &bytes[..];
        for _ in 0..20 {
            let _ = LogEntry::parse(&mut rest);
        }
    }
}
