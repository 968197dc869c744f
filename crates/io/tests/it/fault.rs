//! Injected faults: their effect on requests, medium and health of the device.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_base::arena::Arena;
use forebay_base::rng::SmallRng;
use forebay_base::sync::Arc;
use forebay_io::fault::{Crash, Fault, FaultCounters, FaultDevice, Rule};
use forebay_io::{
    Device, Error, ErrorKind, FileDevice, Health, MemoryDevice, MemoryOptions, Op, OpenOptions,
    Request,
};
use proptest::prelude::*;

use crate::common::{arena, filled};

const SECTOR: u64 = 512;
const SECTORS: u64 = 256;
const EIO: i32 = 5;

fn memory() -> Arc<MemoryDevice> {
    let options = MemoryOptions::default();
    Arc::new(MemoryDevice::new("memory", SECTORS * SECTOR, &options).unwrap())
}

fn write(
    device: &dyn Device,
    arena: &Arena,
    sector: u64,
    sectors: u64,
    fill: u8,
) -> Result<(), Error> {
    let buffer = filled(arena, (sectors * SECTOR) as usize, fill);
    device.run(Request::write(sector * SECTOR, buffer)).result
}

fn read(device: &dyn Device, arena: &Arena, sector: u64, sectors: u64) -> Result<Vec<u8>, Error> {
    let buffer = arena.alloc((sectors * SECTOR) as usize).unwrap();
    Ok(device.run(Request::read(sector * SECTOR, buffer)).into_buffer()?.to_vec())
}

fn flush(device: &dyn Device) -> Result<(), Error> {
    device.run(Request::flush()).result
}

/// The fills of all sectors.
fn fills(device: &dyn Device, arena: &Arena) -> Vec<u8> {
    let bytes = read(device, arena, 0, SECTORS).unwrap();
    bytes.chunks(SECTOR as usize).map(|sector| sector[0]).collect()
}

#[test]
fn errors_come_as_asked_and_show_in_health_and_stats() {
    let (arena, memory) = (arena(), memory());
    let device = FaultDevice::new(memory.clone(), 1);
    assert_eq!(device.health(), Health::Healthy);
    let rule = device.add(Rule::new(Fault::Error(EIO)).within(0..SECTOR));
    let error = write(&device, &arena, 0, 2, 1).unwrap_err();
    assert_eq!((error.kind(), error.errno()), (ErrorKind::Device, Some(EIO)));
    assert_eq!((error.op(), error.range(), error.device()), (Op::Write, (0, 1024), "memory"));
    read(&device, &arena, 0, 1).unwrap_err();
    (&device as &dyn Device).run(Request::discard(0, SECTOR)).result.unwrap_err();
    write(&device, &arena, 1, 1, 2).unwrap();
    flush(&device).unwrap();
    device.add(Rule::new(Fault::Error(libc::ENODEV)).on(Op::Flush));
    assert_eq!(flush(&device).unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!(device.health(), Health::Degraded { errors: 4 });
    assert!(device.stats().counters.contains(&("faults_injected", "error", 4)));
    let injected = device.injected();
    assert_eq!(injected.len(), 4);
    assert_eq!((injected[0].rule, injected[0].op, injected[0].len), (rule, Op::Write, 1024));
    assert_eq!(device.remove(rule), Some(3));
    device.clear();
    flush(&device).unwrap();
    // The failed write never reached the medium.
    assert_eq!(fills(&*memory, &arena)[..2], [0, 2]);
}

#[test]
fn malformed_requests_meet_no_rule() {
    let arena = arena();
    let device = FaultDevice::new(memory(), 1);
    device.add(Rule::new(Fault::Lost));
    let handle: &dyn Device = &device;
    for request in [
        Request::write(1, filled(&arena, 512, 1)),
        Request::write(SECTORS * SECTOR, filled(&arena, 512, 1)),
        Request::write(u64::MAX - 511, filled(&arena, 512, 1)),
        Request::discard(0, 0),
    ] {
        let error = handle.run(request).result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    }
    assert!(device.injected().is_empty());
}

#[test]
fn rot_flips_bits_of_reads_in_its_range_and_leaves_the_medium() {
    let (arena, memory) = (arena(), memory());
    let device = FaultDevice::new(memory.clone(), 9);
    device.add(Rule::new(Fault::Rot { bits: 1 }).within(600..700));
    for _ in 0..20 {
        let found = read(&device, &arena, 0, 4).unwrap();
        let rotten: Vec<_> = (0..found.len()).filter(|&at| found[at] != 0).collect();
        assert_eq!(rotten.len(), 1);
        assert!((600..700).contains(&rotten[0]), "{rotten:?}");
        assert_eq!(found[rotten[0]].count_ones(), 1);
    }
    assert_eq!(read(&device, &arena, 4, 4).unwrap(), vec![0; 4 * SECTOR as usize]);
    assert_eq!(fills(&*memory, &arena), [0; SECTORS as usize]);
}

#[test]
fn a_torn_write_is_there_up_to_some_byte() {
    let (arena, memory) = (arena(), memory());
    let device = FaultDevice::new(memory.clone(), 5);
    let (mut damaged, mut short) = (0, 0);
    for round in 0..64 {
        let reported = round % 2 == 0;
        let rule = device.add(Rule::new(Fault::Torn { reported }));
        assert_eq!(write(&device, &arena, 0, 8, 0xaa).is_err(), reported);
        assert_eq!(device.remove(rule), Some(1));
        let found = read(&*memory, &arena, 0, 8).unwrap();
        let cut = found.iter().position(|&byte| byte != 0xaa).expect("it is torn");
        let sector_end = cut.next_multiple_of(SECTOR as usize).max(SECTOR as usize);
        if found[cut] == 0x55 {
            damaged += 1;
            assert!(found[cut..sector_end].iter().all(|&byte| byte == 0x55));
            assert!(found[sector_end..].iter().all(|&byte| byte == 0));
        } else {
            short += 1;
            assert!(found[cut..].iter().all(|&byte| byte == 0));
            assert_eq!(cut % SECTOR as usize, 0);
        }
        write(&device, &arena, 0, 8, 0).unwrap();
    }
    assert!(damaged > 5 && short > 5, "{damaged} and {short}");
    assert_eq!(device.health(), Health::Degraded { errors: 32 });
}

#[test]
fn an_error_after_execution_leaves_the_write_done() {
    let (arena, memory) = (arena(), memory());
    let device = FaultDevice::new(memory.clone(), 1);
    let rule = device.add(Rule::new(Fault::ErrorAfter(EIO)).times(1));
    assert!(write(&device, &arena, 0, 1, 7).is_err());
    assert_eq!(device.remove(rule), Some(1));
    assert_eq!(fills(&*memory, &arena)[0], 7);
    // By then a flush has written the cache.
    device.add(Rule::new(Fault::Volatile));
    write(&device, &arena, 1, 1, 8).unwrap();
    device.add(Rule::new(Fault::ErrorAfter(EIO)).on(Op::Flush));
    assert!(flush(&device).is_err());
    assert_eq!((device.volatile_bytes(), fills(&*memory, &arena)[1]), (0, 8));
    assert_eq!(device.health(), Health::Degraded { errors: 2 });
}

#[test]
fn a_lost_write_is_acknowledged_and_nowhere() {
    let (arena, memory) = (arena(), memory());
    let device = FaultDevice::new(memory.clone(), 1);
    device.add(Rule::new(Fault::Lost).nth(2));
    write(&device, &arena, 0, 1, 1).unwrap();
    write(&device, &arena, 0, 1, 2).unwrap();
    flush(&device).unwrap();
    assert_eq!(fills(&*memory, &arena)[0], 1);
}

#[test]
fn the_volatile_cache_is_read_flushed_and_lost() {
    let (arena, memory) = (arena(), memory());
    let device = FaultDevice::new(memory.clone(), 1);
    device.add(Rule::new(Fault::Volatile));
    write(&device, &arena, 0, 4, 1).unwrap();
    assert_eq!(device.volatile_bytes(), 4 * SECTOR);
    assert_eq!(fills(&*memory, &arena)[..5], [0; 5]);
    assert_eq!(fills(&device, &arena)[..5], [1, 1, 1, 1, 0]);
    flush(&device).unwrap();
    assert_eq!(device.volatile_bytes(), 0);
    assert_eq!(device.counters().total(FaultCounters::VOLATILE_SECTORS_FLUSHED), 4);
    assert_eq!(fills(&*memory, &arena)[..5], [1, 1, 1, 1, 0]);
    write(&device, &arena, 3, 2, 2).unwrap();
    // A write that overlaps the cache is cached too, even without a rule.
    device.clear();
    write(&device, &arena, 4, 1, 3).unwrap();
    write(&device, &arena, 9, 1, 4).unwrap();
    assert_eq!(fills(&device, &arena)[..10], [1, 1, 1, 2, 3, 0, 0, 0, 0, 4]);
    assert_eq!(fills(&*memory, &arena)[..10], [1, 1, 1, 1, 0, 0, 0, 0, 0, 4]);
    let crashed = device.crash(Crash::LoseAll).unwrap();
    assert_eq!((crashed.kept, crashed.lost, crashed.torn), (0, 2, 0));
    assert_eq!(fills(&*memory, &arena)[..10], [1, 1, 1, 1, 0, 0, 0, 0, 0, 4]);
    assert_eq!(device.health(), Health::Gone);
    assert_eq!(flush(&device).unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!(read(&device, &arena, 0, 1).unwrap_err().kind(), ErrorKind::Gone);
}

#[test]
fn a_crash_keeps_the_chosen_sectors() {
    let arena = arena();
    let crash = |how| {
        let memory = memory();
        let device = FaultDevice::new(memory.clone(), 1);
        device.add(Rule::new(Fault::Volatile));
        write(&device, &arena, 0, SECTORS, 1).unwrap();
        let crashed = device.crash(how).unwrap();
        let fills = fills(&*memory, &arena);
        let count = |fill| fills.iter().filter(|&&found| found == fill).count() as u64;
        // A torn sector may be cut at its first byte.
        assert!((crashed.kept..=crashed.kept + crashed.torn).contains(&count(1)), "{crashed:?}");
        assert_eq!(crashed.lost, count(0));
        assert_eq!(crashed.kept + crashed.lost + crashed.torn, SECTORS);
        (crashed, fills)
    };
    assert_eq!(crash(Crash::KeepAll).0.kept, SECTORS);
    assert_eq!(crash(Crash::LoseAll).0.lost, SECTORS);
    let (sampled, fills) = crash(Crash::Sample(4));
    assert!(sampled.kept > 50 && sampled.lost > 50 && sampled.torn > 2, "{sampled:?}");
    assert_eq!(crash(Crash::Sample(4)), (sampled, fills));
}

#[test]
fn a_torn_sector_takes_its_physical_sector_with_it() {
    let arena = arena();
    let options = MemoryOptions { physical_bytes: 4096, ..MemoryOptions::default() };
    let memory = Arc::new(MemoryDevice::new("memory", 8 * 4096, &options).unwrap());
    let image = |fill| {
        let buffer = filled(&arena, 8 * 4096, fill);
        (&*memory as &dyn Device).run(Request::write(0, buffer)).result.unwrap();
    };
    let mut damaged = 0;
    for seed in 0..64 {
        image(1);
        let device = FaultDevice::new(memory.clone(), 1);
        device.add(Rule::new(Fault::Volatile));
        write(&device, &arena, 9, 1, 2).unwrap();
        let crashed = device.crash(Crash::Sample(seed)).unwrap();
        damaged += crashed.torn;
        let buffer = arena.alloc(8 * 4096).unwrap();
        let found = (&*memory as &dyn Device).run(Request::read(0, buffer));
        let found = found.into_buffer().unwrap();
        let expected = if crashed.torn > 0 { !1 } else { 1 };
        assert!(
            found[4096..9 * 512].iter().chain(&found[10 * 512..8192]).all(|it| *it == expected)
        );
        assert!(found[..4096].iter().chain(&found[8192..]).all(|it| *it == 1));
    }
    assert!(damaged > 0, "no sector was torn");
}

#[test]
fn a_flush_that_fails_keeps_the_cache_and_the_next_one_succeeds() {
    let (arena, memory) = (arena(), memory());
    let below = Arc::new(FaultDevice::new(memory.clone(), 1));
    let device = FaultDevice::new(below.clone(), 2);
    device.add(Rule::new(Fault::Volatile));
    // Two runs, of which the second fails; then the flush below fails.
    write(&device, &arena, 0, 1, 1).unwrap();
    write(&device, &arena, 8, 1, 2).unwrap();
    below.add(Rule::new(Fault::Error(EIO)).on(Op::Write).nth(2));
    flush(&device).unwrap_err();
    assert_eq!(device.volatile_bytes(), 2 * SECTOR);
    below.add(Rule::new(Fault::Error(EIO)).on(Op::Flush).nth(1));
    flush(&device).unwrap_err();
    assert_eq!(fills(&device, &arena)[..9], [1, 0, 0, 0, 0, 0, 0, 0, 2]);
    flush(&device).unwrap();
    assert_eq!(device.volatile_bytes(), 0);
    assert_eq!(fills(&*memory, &arena)[..9], [1, 0, 0, 0, 0, 0, 0, 0, 2]);
}

#[test]
fn a_delay_delays_and_closing_ends_it() {
    let arena = arena();
    let device = FaultDevice::new(memory(), 1);
    let delay = Duration::from_millis(30);
    let rule = device.add(Rule::new(Fault::Delay(delay)).on(Op::Read));
    let before = Instant::now();
    read(&device, &arena, 0, 1).unwrap();
    assert!(before.elapsed() >= delay);
    device.remove(rule);
    device.add(Rule::new(Fault::Delay(Duration::from_secs(3600))));
    // Removing the rules ends delays.
    let (told, ends) = std::sync::mpsc::channel();
    let late = Request::read(0, arena.alloc(512).unwrap());
    device.submit(late.on_done(move |completion| told.send(completion.result.is_ok()).unwrap()));
    assert!(ends.try_recv().is_err());
    device.clear();
    assert_eq!(ends.recv(), Ok(true));
    device.add(Rule::new(Fault::Delay(Duration::from_secs(3600))));
    let ended = Arc::new(AtomicU64::new(0));
    for at in 0..10 {
        let (arena, ended) = (arena.alloc(512).unwrap(), ended.clone());
        device.submit(Request::read(at * SECTOR, arena).on_done(move |completion| {
            completion.result.unwrap();
            ended.fetch_add(1, Ordering::SeqCst);
        }));
    }
    assert_eq!(ended.load(Ordering::SeqCst), 0);
    device.close();
    assert_eq!(ended.load(Ordering::SeqCst), 10);
    assert_eq!(read(&device, &arena, 0, 1).unwrap_err().kind(), ErrorKind::Closed);
    assert!(device.stats().counters.contains(&("faults_injected", "delay", 12)));
}

#[test]
fn a_crash_fails_delayed_requests() {
    let arena = arena();
    let device = FaultDevice::new(memory(), 1);
    device.add(Rule::new(Fault::Delay(Duration::from_secs(3600))));
    let (request, pending) = Request::write(0, filled(&arena, 512, 1)).pending();
    device.submit(request);
    device.crash(Crash::KeepAll).unwrap();
    assert_eq!(pending.wait(&device).result.unwrap_err().kind(), ErrorKind::Gone);
}

#[test]
fn dropping_the_device_ends_delayed_requests() {
    let arena = arena();
    let memory = memory();
    let device = FaultDevice::new(memory.clone(), 1);
    device.add(Rule::new(Fault::Delay(Duration::from_secs(3600))));
    let (request, pending) = Request::write(0, filled(&arena, 512, 7)).pending();
    device.submit(request);
    drop(device);
    pending.wait(&*memory).result.unwrap();
    assert_eq!(fills(&*memory, &arena)[0], 7);
}

#[test]
fn each_request_ends_once_though_everything_fails_on_several_threads() {
    const THREADS: u64 = 4;
    const EACH: u64 = 200;
    let arena = arena();
    let folder = tempfile::tempdir().unwrap();
    let options = OpenOptions { create_bytes: Some(1 << 20), ..OpenOptions::default() };
    let file = FileDevice::open(folder.path().join("medium"), &options).unwrap();
    let sector = u64::from(file.info().sector_bytes);
    let below = Arc::new(FaultDevice::new(Arc::new(file), 1));
    below.add(Rule::new(Fault::Error(EIO)).with_probability(0.5));
    let device = Arc::new(FaultDevice::new(below, 2));
    device.add(Rule::new(Fault::Delay(Duration::from_micros(300))).with_probability(0.2));
    for fault in [Fault::Volatile, Fault::Torn { reported: false }, Fault::Rot { bits: 3 }] {
        device.add(Rule::new(fault).with_probability(0.3));
    }
    let ends: Arc<Vec<AtomicU64>> =
        Arc::new((0..THREADS * EACH).map(|_| AtomicU64::new(0)).collect());
    let first = forebay_base::testing::seed(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (device, arena, ends) = (&device, &arena, &ends);
            scope.spawn(move || {
                let mut rng = SmallRng::from_seed(first.wrapping_add(thread));
                for at in 0..EACH {
                    let buffer = arena.alloc(sector as usize).unwrap();
                    let offset = rng.below(16) * sector;
                    let request = match rng.below(6) {
                        0 => Request::flush(),
                        1 => Request::discard(offset, sector),
                        2 | 3 => Request::read(offset, buffer),
                        _ => Request::write(offset, buffer),
                    };
                    let (ends, number) = (Arc::clone(ends), (thread * EACH + at) as usize);
                    device.submit(request.on_done(move |_| {
                        ends[number].fetch_add(1, Ordering::SeqCst);
                    }));
                }
            });
        }
    });
    device.close();
    assert!(ends.iter().all(|count| count.load(Ordering::SeqCst) == 1));
    // All memory was returned: the rest belonged to the device's own work, which is over.
    assert_eq!(arena.used_bytes(), 0);
}

#[derive(Clone, Debug)]
enum Step {
    Write { sector: u64, sectors: u64 },
    Flush,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let write = (0..24u64, 1..6u64).prop_map(|(sector, sectors)| Step::Write { sector, sectors });
    prop::collection::vec(prop_oneof![5 => write, 1 => Just(Step::Flush)], 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Some writes are cached, some flushes below fail, then the device crashes.
    #[test]
    fn reads_see_the_last_write_and_flushed_data_survives_a_crash(
        steps in steps(),
        seed in any::<u64>(),
    ) {
        let (arena, memory) = (arena(), memory());
        let below = Arc::new(FaultDevice::new(memory.clone(), seed));
        below.add(Rule::new(Fault::Error(EIO)).on(Op::Flush).with_probability(0.2));
        let device = FaultDevice::new(below, seed);
        device.add(Rule::new(Fault::Volatile).with_probability(0.5));
        let mut now = vec![0; SECTORS as usize];
        let mut possible: Vec<Vec<u8>> = vec![vec![0]; SECTORS as usize];
        for (at, step) in steps.iter().enumerate() {
            match *step {
                Step::Write { sector, sectors } => {
                    let fill = at as u8 + 1;
                    write(&device, &arena, sector, sectors, fill).unwrap();
                    for at in sector as usize..(sector + sectors) as usize {
                        now[at] = fill;
                        possible[at].push(fill);
                    }
                }
                Step::Flush => if flush(&device).is_ok() {
                    possible = now.iter().map(|&fill| vec![fill]).collect();
                },
            }
            prop_assert_eq!(&fills(&device, &arena), &now);
        }
        let crashed = device.crash(Crash::Sample(seed)).unwrap();
        let mut others = 0;
        for (found, possible) in fills(&*memory, &arena).iter().zip(&possible) {
            others += u64::from(!possible.contains(found));
        }
        // Only a torn sector may begin with another fill.
        prop_assert!(others <= crashed.torn, "{others} strange sectors, {crashed:?}");
    }
}
