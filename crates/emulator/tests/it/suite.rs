// SPDX-License-Identifier: Apache-2.0
//! The store suite, hostile keys among it, against the emulator as any S3 client sees it.

use std::collections::HashMap;
use std::sync::Arc;

use penstock_emulator::{Emulator, Keys, Settings, Tier};
use penstock_store::{StoreSettings, open, suite};

const BOOK: &str = include_str!("../../../../python/penstock/price/books/tiers.toml");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn test_emulator_stands_the_store_suite() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings {
        folder: folder.path().to_owned(),
        tier: Tier::named(BOOK, "none").unwrap(),
        scale: 1.0,
        bind: "127.0.0.1:0".parse().unwrap(),
        keys: Keys::random(),
    };
    let mut emulator = tokio::task::spawn_blocking(|| Emulator::start(settings)).await.unwrap().unwrap();
    let env: HashMap<String, String> = [
        ("AWS_ENDPOINT_URL", emulator.endpoint()),
        ("AWS_ACCESS_KEY_ID", emulator.keys().access.clone()),
        ("AWS_SECRET_ACCESS_KEY", emulator.keys().secret.clone()),
        ("AWS_REGION", emulator.region().to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    let settings = StoreSettings::from_env(&env).unwrap();
    let opened = open(&emulator.url().parse().unwrap(), &settings, Arc::default()).unwrap();
    suite::run(opened.store).await;
    tokio::task::spawn_blocking(move || emulator.stop()).await.unwrap();
}
