//! Checks of a pool whose device answers late have several reads in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_base::rng::SmallRng;
use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Decorator, Device, Op, Request};
use forebay_pool::Pool;

use crate::common::{MIB, arena, check, dataset};
use crate::object_store::{Store, disk};

/// Counts the reads in flight.
struct CountsReads {
    inner: Arc<dyn Device>,
    now: Arc<AtomicUsize>,
    most: AtomicUsize,
}

impl Decorator for CountsReads {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn decorate(&self, request: Request) -> Option<Request> {
        if request.op() != Op::Read {
            return Some(request);
        }
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        let count = Arc::clone(&self.now);
        Some(request.layered(move |_| {
            count.fetch_sub(1, Ordering::SeqCst);
        }))
    }
}

#[test]
fn a_check_of_an_object_store_reads_ahead() {
    let slow = Arc::new(FaultDevice::new(disk(), 7));
    let counted = Arc::new(CountsReads {
        inner: Arc::clone(&slow) as _,
        now: Arc::default(),
        most: AtomicUsize::new(0),
    });
    let store = Store::over(Arc::clone(&counted) as Arc<dyn Device>);
    let pool = store.create();
    let data = dataset(&pool);
    // Many small objects, so that few blocks lead to many others, and one large one.
    for number in 0..300_u64 {
        let tx = pool.begin().unwrap();
        let object = data.object(data.create_object(&tx, &[]).unwrap()).unwrap();
        let bytes = if number == 7 { 2 * MIB as usize } else { 5000 };
        object.write(&tx, 0, &vec![number as u8 | 1; bytes]).unwrap();
    }
    pool.sync().unwrap();
    // So late that reads that may overlap do so, until enough of them have.
    slow.add(Rule::new(Fault::Delay(Duration::from_millis(500))).on(Op::Read));
    counted.most.store(0, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let check = scope.spawn(|| check(&pool));
        while counted.now.load(Ordering::SeqCst) < 8 && !check.is_finished() {
            std::thread::yield_now();
        }
        slow.clear();
    });
    let most = counted.most.load(Ordering::SeqCst);
    // One for each thread, if none of them is late, and one for the walk itself.
    assert!((8..=17).contains(&most), "{most} reads in flight");
    let report = pool.scrub(&mut |_| std::ops::ControlFlow::Continue(())).unwrap();
    assert!(report.complete && report.lost_count == 0, "{report:?}");
    pool.export().unwrap();
}

/// A pool of small objects, and the address of a block of one of them.
fn with_objects(faults: &Arc<FaultDevice>) -> (Store, Pool, u64) {
    let store = Store::over(Arc::clone(faults) as Arc<dyn Device>);
    let pool = store.create();
    let data = dataset(&pool);
    let mut content = vec![0; 8192];
    SmallRng::from_seed(1).fill(&mut content);
    for number in 0..100_u64 {
        let tx = pool.begin().unwrap();
        let object = data.object(data.create_object(&tx, &[]).unwrap()).unwrap();
        content[..8].copy_from_slice(&number.to_le_bytes());
        object.write(&tx, 0, &content).unwrap();
    }
    pool.sync().unwrap();
    content[..8].copy_from_slice(&50_u64.to_le_bytes());
    let arena = arena();
    let at = (0..64 * MIB).step_by(4096).find(|at| {
        let read = faults.run(Request::read(*at, arena.alloc(4096).unwrap())).into_buffer();
        read.unwrap()[..] == content[..4096]
    });
    (store, pool, at.expect("content that cannot be compressed is stored as it is"))
}

/// So late that the walk finds its blocks read ahead.
fn delay_reads(faults: &FaultDevice) {
    faults.add(Rule::new(Fault::Delay(Duration::from_millis(5))).on(Op::Read));
}

#[test]
fn a_bad_block_that_was_read_ahead_is_found() {
    let faults = Arc::new(FaultDevice::new(disk(), 7));
    let (_store, pool, at) = with_objects(&faults);
    faults.add(Rule::new(Fault::Rot { bits: 9 }).on(Op::Read).within(at..at + 4096));
    delay_reads(&faults);
    let report = pool.check(&mut |_| std::ops::ControlFlow::Continue(())).unwrap();
    assert!(report.complete && report.damaged_count == 1, "{report:?}");
    let report = pool.scrub(&mut |_| std::ops::ControlFlow::Continue(())).unwrap();
    assert!(report.complete && report.lost_count == 1, "{report:?}");
    faults.clear();
    check(&pool);
    pool.export().unwrap();
}

/// The walk reads it again itself.
#[test]
fn a_read_ahead_that_fails_is_no_damage() {
    let faults = Arc::new(FaultDevice::new(disk(), 7));
    let (_store, pool, at) = with_objects(&faults);
    let failure = Rule::new(Fault::Error(5)).on(Op::Read).within(at..at + 4096).times(1);
    let rule = faults.add(failure);
    delay_reads(&faults);
    check(&pool);
    assert_eq!(faults.remove(rule), Some(1), "the block was read, and that failed");
    pool.export().unwrap();
}
