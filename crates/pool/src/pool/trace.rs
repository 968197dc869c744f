//! Traces of the accesses to a pool's blocks.

use forebay_base::sync::Arc;
use forebay_base::sync::atomic::Ordering;

use super::Pool;
use crate::error::{Error, ErrorKind, Result};
use crate::trace::TraceSession;

impl Pool {
    /// Begins to record the accesses to the pool's blocks. There is one trace at a time. It ends
    /// when it is dropped or finished, or when the pool is exported.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] if there is a trace already, [`ErrorKind::Closed`].
    pub fn trace(&self) -> Result<TraceSession> {
        let inner = &self.inner;
        let (trace, cache) = (inner.store.trace(), inner.store.cache());
        let session = TraceSession::start(trace, cache, &inner.clock, (&inner.name, inner.guid))?;
        if inner.closed.load(Ordering::Acquire) {
            let text = format!("pool {} was exported; import it again", inner.name);
            return Err(Error::new(ErrorKind::Closed, text));
        }
        Ok(session)
    }

    /// Appends the names of the open datasets to a trace of this pool, except those that it has.
    pub fn put_trace_datasets(&self, session: &mut TraceSession, out: &mut Vec<u8>) {
        session.put_dataset(out, self.inner.store.owner().get(), 0, "");
        let datasets: Vec<_> = self.inner.datasets.lock().values().map(Arc::clone).collect();
        for dataset in datasets {
            let number = dataset.objset.io.store.owner().get();
            session.put_dataset(out, number, dataset.guid, &dataset.name);
        }
    }
}
