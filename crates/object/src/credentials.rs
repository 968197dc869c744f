//! Keys of a profile, which are read again now and then.
//!
//! The keys of a profile may be those of a session that ends. Tools write new ones into the file
//! before that. So the files are read again at most every [`REREAD`], if requests are signed. If
//! they have no keys that can be used, those of before stay.
//!
//! Secrets have no `Debug`, and are in no log.
//!
//! Locking: `object-credentials`, a leaf lock, held for a look.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use forebay_base::sync::{Arc, Mutex};
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use tokio::time::Instant;

use crate::cleaner::now;
use crate::profile::Credentials;

/// Time between two looks at the files, at least.
const REREAD: Duration = Duration::from_secs(30);

/// Finds the keys in the files.
type Find = dyn Fn() -> Option<Credentials> + Send + Sync;

/// Keys of a profile.
pub(crate) struct ProfileCredentials {
    find: Arc<Find>,
    state: Mutex<State>,
}

struct State {
    credential: Arc<AwsCredential>,
    /// `None` before the first request.
    read_at: Option<Instant>,
}

impl ProfileCredentials {
    /// Begins with keys that were just found.
    pub(crate) fn new(
        found: Credentials,
        find: impl Fn() -> Option<Credentials> + Send + Sync + 'static,
    ) -> Self {
        let state = State { credential: Arc::new(credential(found)), read_at: None };
        Self { find: Arc::new(find), state: Mutex::named("object-credentials", state) }
    }

    async fn current(&self) -> Arc<AwsCredential> {
        {
            let (mut state, now) = (self.state.lock(), now());
            let read_at = *state.read_at.get_or_insert(now);
            if now - read_at < REREAD {
                return Arc::clone(&state.credential);
            }
            // Other requests go on with what there is.
            state.read_at = Some(now);
        }
        let find = Arc::clone(&self.find);
        let found = tokio::task::spawn_blocking(move || find()).await;
        let mut state = self.state.lock();
        if let Some(found) = found.ok().flatten().map(credential)
            && found != *state.credential
        {
            tracing::info!("the profile has new keys for the object store");
            state.credential = Arc::new(found);
        }
        Arc::clone(&state.credential)
    }
}

fn credential(found: Credentials) -> AwsCredential {
    let Credentials { access_key_id, secret_access_key, session_token } = found;
    AwsCredential { key_id: access_key_id, secret_key: secret_access_key, token: session_token }
}

impl fmt::Debug for ProfileCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProfileCredentials")
    }
}

impl CredentialProvider for ProfileCredentials {
    type Credential = AwsCredential;

    // As the macro of `async-trait` has it.
    fn get_credential<'a, 'b>(
        &'a self,
    ) -> Pin<Box<dyn Future<Output = object_store::Result<Arc<AwsCredential>>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move { Ok(self.current().await) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use forebay_base::sync::atomic::{AtomicUsize, Ordering};

    fn keys(name: &str) -> Credentials {
        Credentials {
            access_key_id: name.to_owned(),
            secret_access_key: format!("secret of {name}"),
            session_token: Some(format!("token of {name}")),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn new_keys_of_a_profile_are_used_soon_and_good_ones_until_then() {
        let (looks, file) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(1)));
        let find = {
            let (looks, file) = (Arc::clone(&looks), Arc::clone(&file));
            move || {
                looks.fetch_add(1, Ordering::Relaxed);
                match file.load(Ordering::Relaxed) {
                    0 => None,
                    number => Some(keys(&number.to_string())),
                }
            }
        };
        let profile = ProfileCredentials::new(keys("1"), find);
        assert_eq!(format!("{profile:?}"), "ProfileCredentials");
        let used = || async { profile.get_credential().await.unwrap() };
        assert_eq!(used().await.key_id, "1");
        file.store(2, Ordering::Relaxed);
        tokio::time::sleep(REREAD / 2).await;
        assert_eq!(used().await.key_id, "1");
        assert_eq!(looks.load(Ordering::Relaxed), 0, "not for each request");
        tokio::time::sleep(REREAD).await;
        let renewed = used().await;
        assert_eq!((renewed.key_id.as_str(), renewed.secret_key.as_str()), ("2", "secret of 2"));
        assert_eq!(renewed.token.as_deref(), Some("token of 2"));
        // Somebody is writing the file.
        file.store(0, Ordering::Relaxed);
        tokio::time::sleep(REREAD).await;
        assert_eq!(used().await.key_id, "2");
        assert_eq!(looks.load(Ordering::Relaxed), 2);
    }
}
