//! Checks of a pool whose device answers late have several reads in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_io::fault::{Fault, FaultDevice, Rule};
use forebay_io::{Decorator, Device, Op, Request};

use crate::common::{MIB, check, dataset};
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
    slow.add(Rule::new(Fault::Delay(Duration::from_millis(10))).on(Op::Read));
    counted.most.store(0, Ordering::SeqCst);
    check(&pool);
    let most = counted.most.load(Ordering::SeqCst);
    // One for each thread, if none of them is late, and one for the walk itself.
    assert!((8..=17).contains(&most), "{most} reads in flight");
    let report = pool.scrub(&mut |_| std::ops::ControlFlow::Continue(())).unwrap();
    assert!(report.complete && report.lost_count == 0, "{report:?}");
    pool.export().unwrap();
}
