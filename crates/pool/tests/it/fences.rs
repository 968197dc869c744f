//! Requests that stay in the queue of a device for longer than a lease lasts are not issued:
//! another host may have taken the pool over, and used the space.

use std::sync::{Arc, Mutex};

use forebay_base::clock::ManualClock;
use forebay_io::{Decorator, Device, ErrorKind as IoErrorKind, Op, Priority, Request};
use forebay_pool::format::label::{HEARTBEAT_OFFSET, LABEL_BYTES};
use forebay_pool::inspect::ObjsetName;
use forebay_pool::{
    BlockCache, CreateOptions, DatasetSettings, ErrorKind, LeafState, NewVdev, Opened, Pool,
};

use crate::common::{MIB, cache, check, create_options, dataset, memory};
use crate::errors::damage;
use crate::two_hosts::{INTERVAL_MS, NS_PER_MS, SIZE, import_with, options, suspended, tunables};

type Meanwhile = Box<dyn FnOnce() + Send>;

/// A device that keeps a request in its queue for longer than a lease.
struct HeldUp {
    inner: Arc<dyn Device>,
    clock: Arc<ManualClock>,
    which: fn(&Request) -> bool,
    /// What happens meanwhile. Nothing is held up without it.
    meanwhile: Mutex<Option<Meanwhile>>,
    /// How the request ended.
    ended: Arc<Mutex<Option<Result<(), IoErrorKind>>>>,
}

impl HeldUp {
    fn over(inner: &Arc<dyn Device>, which: fn(&Request) -> bool) -> Arc<Self> {
        Arc::new(Self {
            inner: Arc::clone(inner),
            clock: Arc::new(ManualClock::new()),
            which,
            meanwhile: Mutex::default(),
            ended: Arc::default(),
        })
    }

    fn opened(self: &Arc<Self>) -> Opened {
        Opened::shared(Arc::clone(self) as Arc<dyn Device>)
    }

    fn create_options(&self, cache: &Arc<BlockCache>) -> CreateOptions {
        let clock = Arc::clone(&self.clock);
        CreateOptions { clock: Some(clock), tunables: tunables(), ..create_options(cache) }
    }

    fn create(self: &Arc<Self>, cache: &Arc<BlockCache>) -> Pool {
        Pool::create(vec![self.opened()], &self.create_options(cache)).unwrap()
    }

    fn hold_up(&self, meanwhile: impl FnOnce() + Send + 'static) {
        *self.ended.lock().unwrap() = None;
        *self.meanwhile.lock().unwrap() = Some(Box::new(meanwhile));
    }

    /// Has another host take the pool over meanwhile, if `taken_over`. Returns its pool, once it
    /// has it.
    fn hold_up_for(&self, taken_over: bool) -> Arc<Mutex<Option<Pool>>> {
        let other = Arc::new(Mutex::new(None));
        let (shared, inner) = (Arc::clone(&other), Arc::clone(&self.inner));
        self.hold_up(move || {
            if taken_over {
                let pool = import_with(&inner, options(), |_| {}).0.unwrap();
                *shared.lock().unwrap() = Some(pool);
            }
        });
        other
    }

    #[track_caller]
    fn assert_not_issued(&self) {
        assert_eq!(*self.ended.lock().unwrap(), Some(Err(IoErrorKind::Cancelled)));
    }
}

impl Decorator for HeldUp {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn decorate(&self, request: Request) -> Option<Request> {
        if !(self.which)(&request) {
            return Some(request);
        }
        let Some(meanwhile) = self.meanwhile.lock().unwrap().take() else { return Some(request) };
        // In this order: once time has passed, another thread may look, and renew the lease if
        // nobody has come yet.
        meanwhile();
        self.clock.advance(10 * INTERVAL_MS * NS_PER_MS);
        let ended = Arc::clone(&self.ended);
        Some(request.layered(move |completion| {
            let result = completion.result.as_ref().copied().map_err(forebay_io::Error::kind);
            *ended.lock().unwrap() = Some(result);
        }))
    }
}

fn is_heartbeat(request: &Request) -> bool {
    request.op() == Op::Write && request.offset() == HEARTBEAT_OFFSET
}

fn is_in_label(request: &Request) -> bool {
    !(LABEL_BYTES..SIZE - LABEL_BYTES).contains(&request.offset())
}

/// It would end the use of the new owner, which sees the session of another host.
#[test]
fn a_late_heartbeat_is_not_written_over_that_of_the_new_owner() {
    let device = HeldUp::over(&memory(SIZE), is_heartbeat);
    let late = device.create(&cache(32 * MIB));
    let other = device.hold_up_for(true);
    late.heartbeat();
    device.assert_not_issued();
    let pool = other.lock().unwrap().take().unwrap();
    pool.heartbeat();
    pool.sync().unwrap();
    assert_eq!(pool.stats().suspended, None);
    late.heartbeat();
    suspended(&late, "has taken it over");
    late.export().unwrap_err();
    check(&pool);
}

#[test]
fn a_late_heartbeat_says_nothing_against_its_device() {
    let device = HeldUp::over(&memory(SIZE), is_heartbeat);
    let mirror = NewVdev::Mirror(vec![Opened::shared(memory(SIZE)), device.opened()]);
    let options = device.create_options(&cache(32 * MIB));
    let pool = Pool::create_tree(vec![mirror], &options).unwrap();
    let nobody = device.hold_up_for(false);
    pool.heartbeat();
    device.assert_not_issued();
    assert!(nobody.lock().unwrap().is_none());
    let states: Vec<_> = pool.devices().iter().map(|device| device.state).collect();
    assert_eq!(states, [LeafState::Online; 2]);
    // Nor does a commit give up whose heartbeat is late: it looks again.
    device.clock.advance(10 * INTERVAL_MS * NS_PER_MS);
    let _nobody = device.hold_up_for(false);
    pool.sync().unwrap();
    device.assert_not_issued();
    assert_eq!(pool.stats().suspended, None);
    check(&pool);
}

/// It would end the use of a new owner that has taken the side into use.
#[test]
fn a_late_heartbeat_is_not_written_to_a_side_that_comes_into_use() {
    for attaches in [false, true] {
        let first = memory(SIZE);
        let device = HeldUp::over(&memory(SIZE), is_heartbeat);
        let vdev = match attaches {
            true => NewVdev::Device(Opened::shared(Arc::clone(&first))),
            false => NewVdev::Mirror(vec![Opened::shared(Arc::clone(&first)), device.opened()]),
        };
        let options_of_late = device.create_options(&cache(32 * MIB));
        let late = Pool::create_tree(vec![vdev], &options_of_late).unwrap();
        let name = device.info().name.to_string();
        if !attaches {
            late.offline_device(&name).unwrap();
        }
        let other = Arc::new(Mutex::new(None));
        let (shared, of_other) = (Arc::clone(&other), Arc::clone(&first));
        device.hold_up(move || {
            let pool = import_with(&of_other, options(), |_| {}).0.unwrap();
            *shared.lock().unwrap() = Some(pool);
        });
        let used = match attaches {
            true => late.attach_device(&first.info().name, device.opened(), Default::default()),
            false => late.online_device(&name),
        };
        device.assert_not_issued();
        used.unwrap_err();
        late.export().unwrap_err();
        check(&other.lock().unwrap().take().unwrap());
    }
}

#[test]
fn a_late_label_is_not_issued() {
    for taken_over in [true, false] {
        let device = HeldUp::over(&memory(SIZE), |request| {
            request.op() == Op::Write && request.offset() == 0
        });
        let late = device.create(&cache(32 * MIB));
        let other = device.hold_up_for(taken_over);
        let exported = late.export();
        let Some(pool) = other.lock().unwrap().take() else {
            exported.expect("nobody came");
            continue;
        };
        device.assert_not_issued();
        assert_eq!(exported.unwrap_err().kind(), ErrorKind::InUse);
        check(&pool);
    }
}

#[test]
fn a_late_discard_spares_what_the_new_owner_has_written() {
    let memory = memory(SIZE);
    let device = HeldUp::over(&memory, |request| request.op() == Op::Discard);
    let late = device.create(&cache(32 * MIB));
    late.set_tunable("trim_files", "false").unwrap();
    dataset(&late);
    late.sync().unwrap();
    let other = Arc::new(Mutex::new(None));
    let shared = Arc::clone(&other);
    device.hold_up(move || {
        let pool = import_with(&memory, options(), |_| {}).0.unwrap();
        let data = pool.dataset("data").unwrap();
        let tx = pool.begin().unwrap();
        let object = data.object(data.create_object(&tx, &[]).unwrap()).unwrap();
        drop(tx);
        // Most of the space.
        for at in (0..SIZE / 2).step_by(MIB as usize) {
            let tx = pool.begin().unwrap();
            object.write(&tx, at, &[7; MIB as usize]).unwrap();
        }
        pool.sync().unwrap();
        *shared.lock().unwrap() = Some(pool);
    });
    let error = late.trim(&mut |_| std::ops::ControlFlow::Continue(())).unwrap_err();
    device.assert_not_issued();
    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    let pool = other.lock().unwrap().take().unwrap();
    check(&pool);
    late.export().unwrap_err();
}

#[test]
fn a_late_write_of_the_log_is_not_issued() {
    for taken_over in [true, false] {
        let device = HeldUp::over(&memory(SIZE), |request| {
            let is_sync = request.priority() == Priority::SyncWrite;
            request.op() == Op::Write && is_sync && !is_in_label(request)
        });
        let late = device.create(&cache(32 * MIB));
        let data = dataset(&late);
        let tx = late.begin().unwrap();
        let number = data.create_object(&tx, &[]).unwrap();
        drop(tx);
        let other = device.hold_up_for(taken_over);
        let synced = data.fsync(number);
        drop(data);
        let Some(pool) = other.lock().unwrap().take() else {
            // A commit may have looked meanwhile, and then the write is issued.
            synced.expect("nobody came, and the group is durable");
            check(&late);
            continue;
        };
        device.assert_not_issued();
        assert_eq!(synced.unwrap_err().kind(), ErrorKind::Suspended);
        late.export().unwrap_err();
        check(&pool);
    }
}

#[test]
fn a_late_uberblock_is_not_issued() {
    for taken_over in [true, false] {
        let device = HeldUp::over(&memory(SIZE), |request| {
            let is_uberblock = request.offset() != 0 && request.offset() != HEARTBEAT_OFFSET;
            request.op() == Op::Write && is_in_label(request) && is_uberblock
        });
        let late = device.create(&cache(32 * MIB));
        dataset(&late);
        let other = device.hold_up_for(taken_over);
        let synced = late.sync();
        device.assert_not_issued();
        let Some(pool) = other.lock().unwrap().take() else {
            synced.expect("nobody came");
            check(&late);
            continue;
        };
        assert_eq!(synced.unwrap_err().kind(), ErrorKind::Suspended);
        late.export().unwrap_err();
        pool.sync().unwrap();
        check(&pool);
    }
}

/// The space of the copy may hold something else by now.
#[test]
fn a_late_heal_is_not_issued() {
    let memory = memory(SIZE);
    let device = HeldUp::over(&memory, |request| request.op() == Op::Write);
    let cache = cache(32 * MIB);
    let pool = device.create(&cache);
    let settings = DatasetSettings { data_copies: 2, ..DatasetSettings::default() };
    let data = pool.create_dataset("twice", &settings).unwrap();
    let tx = pool.begin().unwrap();
    let number = data.create_object(&tx, &[]).unwrap();
    data.object(number).unwrap().write(&tx, 0, &[7; 4096]).unwrap();
    drop(tx);
    pool.sync().unwrap();
    damage(&memory, ObjsetName::Dataset("twice"), number, (0, 0), 0);
    cache.cache().clear();
    let other = device.hold_up_for(true);
    let mut found = [0; 4096];
    data.object(number).unwrap().read(0, &mut found).unwrap();
    assert_eq!(found, [7; 4096]);
    device.assert_not_issued();
    drop(data);
    pool.export().unwrap_err();
    other.lock().unwrap().take().expect("it has the pool").sync().unwrap();
}
