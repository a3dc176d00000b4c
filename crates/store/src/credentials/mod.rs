// SPDX-License-Identifier: Apache-2.0
//! Credential cache for all clouds. It keeps a credential until shortly before the credential expires. Each process
//! renews a credential with a single request through `guarded_http`. Different processes renew at slightly different
//! times.
//!
//! The cache decides when to renew, and the credential chain of each store does it. While renewals fail, the cache
//! returns the old credential as long as it is valid. If the store reports that a credential has expired, the cache
//! renews that credential once.

pub(crate) mod guarded_http;
#[cfg(test)]
pub(crate) mod test_token_server;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use http::request;
use penstock_types::{Stopwatch, unix_now};
use reqsign_core::{Context, Error, ProvideCredential, ProvideCredentialDyn, Result, SignRequest, SigningCredential};

/// Range of the time between the renewal and the expiry of a long-lived credential. The time is random, so that
/// processes renew at different times.
const LEAD: (Duration, Duration) = (Duration::from_secs(150), Duration::from_secs(300));
/// Signers reject credentials that expire within fewer seconds than this. Azure's signer has the largest limit (20 s).
const MARGIN_S: i64 = 21;
/// Time between a failed renewal and the next attempt, while the old credential is still valid.
const AGAIN: Duration = Duration::from_secs(10);
/// If the store reports within this time that a renewed credential has expired, the credential is not renewed again.
const TRUSTED: Duration = Duration::from_secs(30);

/// Credential with an expiry time.
pub(crate) trait Expiring: SigningCredential + Clone {
    /// Expiry time in seconds since the epoch; `None` if the credential does not expire.
    fn ends_s(&self) -> Option<i64>;

    /// Returns true if the credential cannot change. Such a credential is not renewed when the store rejects it.
    fn is_fixed(&self) -> bool;
}

struct Cached<C> {
    credential: C,
    since: Stopwatch,
    /// Time after `since` at which the credential is renewed.
    due: Option<Duration>,
    generation: u64,
    after_refusal: bool,
}

/// Credential for one request. `generation` identifies the credential in the cache if the store rejects it.
pub(crate) struct Lease<C> {
    pub(crate) credential: C,
    pub(crate) generation: u64,
}

/// Caches the credential of one source for all users of that source.
pub(crate) struct CredentialCache<C: Expiring> {
    context: Context,
    source: Box<dyn ProvideCredentialDyn<Credential = C>>,
    state: Mutex<State<C>>,
    /// Lock that is held during a request to the source. A caller without a usable credential waits for this lock, and
    /// then checks the cache again.
    asking: tokio::sync::Mutex<()>,
}

struct State<C> {
    kept: Option<Cached<C>>,
    generation: u64,
    refused: bool,
}

/// Returns how long to use a credential with the remaining lifetime `left` before it is renewed.
fn due_in(left: Duration) -> Duration {
    let dice: f64 = rand::random_range(0.0..1.0);
    let long = LEAD.0 + (LEAD.1 - LEAD.0).mul_f64(dice);
    // A short-lived credential is renewed after 60 to 80 % of its remaining lifetime.
    let lead = if left > LEAD.1 * 2 { long } else { left.mul_f64(0.2 + 0.2 * dice) };
    left.saturating_sub(lead).max(Duration::from_secs(1).min(left / 2))
}

impl<C: Expiring> CredentialCache<C> {
    pub(crate) fn new(context: Context, source: impl ProvideCredential<Credential = C>) -> Self {
        let state = State { kept: None, generation: 0, refused: false };
        Self { context, source: Box::new(source), state: Mutex::new(state), asking: tokio::sync::Mutex::new(()) }
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the cached credential if it is valid. The flag is true if the credential is due for renewal.
    fn held(&self) -> Option<(Lease<C>, bool)> {
        let state = self.state();
        let kept = state.kept.as_ref()?;
        let now_s = unix_now().as_secs() as i64;
        if kept.credential.ends_s().is_some_and(|ends_s| ends_s <= now_s + MARGIN_S) {
            return None;
        }
        let taken = Lease { credential: kept.credential.clone(), generation: kept.generation };
        Some((taken, kept.due.is_some_and(|due| kept.since.elapsed() >= due)))
    }

    /// Returns a credential to sign with. If no credential is cached, or the cached one is about to expire, requests a
    /// new one from the source.
    pub(crate) async fn take(&self) -> Result<Lease<C>> {
        match self.held() {
            Some((taken, false)) => Ok(taken),
            // One task renews the credential. The other tasks continue with the old one, which is still valid.
            Some((taken, true)) => match self.asking.try_lock() {
                Err(_) => Ok(taken),
                Ok(_asking) => match self.held() {
                    Some((taken, false)) => Ok(taken),
                    _ => Ok(self.ask().await.unwrap_or_else(|_| {
                        if let Some(kept) = &mut self.state().kept {
                            kept.due = Some(kept.since.elapsed() + AGAIN);
                        }
                        taken
                    })),
                },
            },
            None => {
                let _asking = self.asking.lock().await;
                match self.held() {
                    Some((taken, _)) => Ok(taken),
                    None => self.ask().await,
                }
            }
        }
    }

    async fn ask(&self) -> Result<Lease<C>> {
        let credential = self.source.provide_credential_dyn(&self.context).await?;
        let credential = credential.ok_or_else(|| Error::credential_invalid(NOTHING))?;
        let now_s = unix_now().as_secs() as i64;
        let left_s = credential.ends_s().map(|ends_s| ends_s - now_s - MARGIN_S);
        if left_s.is_some_and(|left_s| left_s <= 0) {
            return Err(Error::credential_invalid("the credential has expired or is about to expire"));
        }
        let due = left_s.map(|left_s| due_in(Duration::from_secs(left_s.unsigned_abs())));
        let mut state = self.state();
        state.generation += 1;
        let after_refusal = std::mem::take(&mut state.refused);
        let generation = state.generation;
        let taken = Lease { credential: credential.clone(), generation };
        state.kept = Some(Cached { credential, since: Stopwatch::start(), due, generation, after_refusal });
        Ok(taken)
    }

    /// Handles a report from the store that the credential of this generation has expired. Returns true if another
    /// attempt may succeed. The credential is then renewed once.
    pub(crate) fn refused(&self, generation: u64) -> bool {
        let mut state = self.state();
        match &state.kept {
            Some(kept) if kept.generation != generation => true,
            Some(kept) if kept.credential.is_fixed() => false,
            Some(kept) if kept.after_refusal && kept.since.elapsed() < TRUSTED => false,
            Some(_) => {
                (state.kept, state.refused) = (None, true);
                true
            }
            None => true,
        }
    }
}

/// Generation of the credential that signed a request; `None` if the request was not signed.
pub(crate) type Stamp = Option<u64>;

/// Signs a request with the current credential. If there is no cache, the request is not signed.
pub(crate) async fn sign<C: Expiring>(
    keeper: Option<&CredentialCache<C>>,
    signer: &impl SignRequest<Credential = C>,
    head: &mut request::Parts,
) -> Result<Stamp> {
    let Some(keeper) = keeper else { return Ok(None) };
    let taken = keeper.take().await?;
    signer.sign_request(keeper.context(), head, Some(&taken.credential), None).await?;
    Ok(Some(taken.generation))
}

/// Handles a report from the store that the credential has expired. Returns true if a retry may succeed.
pub(crate) fn renews<C: Expiring>(keeper: Option<&CredentialCache<C>>, stamp: Stamp) -> bool {
    matches!((keeper, stamp), (Some(keeper), Some(generation)) if keeper.refused(generation))
}

/// Error text if none of the sources has a credential.
pub(crate) const NOTHING: &str = "no source has credentials";

/// Credential caches of this process, by their settings. Stores with equal settings share one cache and its renewals. A
/// forked child has caches of its own, because the thread that renews a credential does not exist in the child.
pub(crate) struct Shared<C: Expiring>(Mutex<Option<Registry<C>>>);

type Registry<C> = HashMap<(u32, String), Weak<CredentialCache<C>>>;

impl<C: Expiring> Shared<C> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Returns the cache with this name, or creates it with `make`. The name contains secrets: never print it.
    pub(crate) fn get(&self, name: String, make: impl FnOnce() -> CredentialCache<C>) -> Arc<CredentialCache<C>> {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let living = slot.get_or_insert_with(HashMap::new);
        living.retain(|_, keeper| keeper.strong_count() > 0);
        let name = (std::process::id(), name);
        if let Some(keeper) = living.get(&name).and_then(Weak::upgrade) {
            return keeper;
        }
        let keeper = Arc::new(make());
        living.insert(name, Arc::downgrade(&keeper));
        keeper
    }
}

/// Formats a map of variables as a part of the name for [`Shared::get`].
pub(crate) fn name_of(variables: &HashMap<String, String>) -> String {
    let mut pairs: Vec<String> = variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
    pairs.sort_unstable();
    pairs.join("\0")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Clone, Debug)]
    struct Token {
        number: usize,
        ends_s: Option<i64>,
    }

    impl SigningCredential for Token {
        fn is_valid(&self) -> bool {
            true
        }
    }

    impl Expiring for Token {
        fn ends_s(&self) -> Option<i64> {
            self.ends_s
        }

        fn is_fixed(&self) -> bool {
            false
        }
    }

    #[derive(Debug, Clone)]
    struct Mint {
        asked: Arc<AtomicUsize>,
        life_s: Option<i64>,
        fails_after: usize,
    }

    impl ProvideCredential for Mint {
        type Credential = Token;

        async fn provide_credential(&self, _: &Context) -> Result<Option<Token>> {
            let number = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
            if number > self.fails_after {
                return Err(Error::unexpected("the mint is closed"));
            }
            Ok(Some(Token { number, ends_s: self.life_s.map(|life_s| unix_now().as_secs() as i64 + life_s) }))
        }
    }

    fn keeper(life_s: Option<i64>, fails_after: usize) -> (Arc<CredentialCache<Token>>, Arc<AtomicUsize>) {
        let asked: Arc<AtomicUsize> = Arc::default();
        let mint = Mint { asked: asked.clone(), life_s, fails_after };
        (Arc::new(CredentialCache::new(Context::new(), mint)), asked)
    }

    #[tokio::test]
    async fn test_keeper_many_at_once_ask_once() {
        let (keeper, asked) = keeper(Some(3600), 9);
        let takers = (0..64).map(|_| keeper.take());
        let taken = futures::future::join_all(takers).await;
        assert!(taken.into_iter().all(|taken| taken.unwrap().credential.number == 1));
        assert_eq!(asked.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn test_keeper_renewal_that_fails_leaves_the_old_one_in_use() {
        let (keeper, asked) = keeper(Some(3600), 1);
        keeper.take().await.unwrap();
        keeper.state().kept.as_mut().unwrap().due = Some(Duration::ZERO);
        for _ in 0..5 {
            assert_eq!(keeper.take().await.unwrap().credential.number, 1);
        }
        assert_eq!(asked.load(Ordering::SeqCst), 2, "a failed renewal is not repeated at once");
    }

    #[tokio::test]
    async fn test_keeper_refusal_by_the_store_renews_once() {
        let (keeper, _) = keeper(None, 9);
        let first = keeper.take().await.unwrap();
        assert!(keeper.refused(first.generation));
        assert!(keeper.refused(first.generation), "a second refusal of the same one says nothing new");
        let second = keeper.take().await.unwrap();
        assert_eq!(second.credential.number, 2);
        assert!(keeper.refused(first.generation), "a late answer to the old one may be sent again");
        assert!(!keeper.refused(second.generation), "a fresh one that is refused too is reported");
    }

    #[tokio::test]
    async fn test_keeper_expired_at_its_source_is_an_error_that_says_so() {
        let (keeper, _) = keeper(Some(-5), 9);
        let error = keeper.take().await.err().unwrap();
        assert!(error.to_string().contains("has expired"), "{error}");
    }

    proptest::proptest! {
        #[test]
        fn prop_due_in_is_before_the_end_and_never_at_once(left_s in 3u64..100_000) {
            let left = Duration::from_secs(left_s);
            let due = due_in(left);
            proptest::prop_assert!(due < left && due >= Duration::from_secs(1), "{due:?} of {left:?}");
        }
    }

    #[test]
    fn test_shared_same_name_is_the_same_keeper_while_it_lives() {
        static SHARED: Shared<Token> = Shared::new();
        let make =
            || CredentialCache::new(Context::new(), Mint { asked: Arc::default(), life_s: None, fails_after: 9 });
        let (a, b) = (SHARED.get("x".into(), make), SHARED.get("x".into(), make));
        assert!(Arc::ptr_eq(&a, &b));
        assert!(!Arc::ptr_eq(&a, &SHARED.get("y".into(), make)));
    }
}
