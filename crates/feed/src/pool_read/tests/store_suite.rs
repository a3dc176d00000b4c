// SPDX-License-Identifier: Apache-2.0
//! Runs the store test suite on a `PoolStore` with known objects. The suite chooses the keys, so each read creates a
//! new `PoolStore` whose listing contains the object that it reads.

use penstock_store::suite;

use super::*;

#[derive(Debug)]
struct Knowing {
    rig: Rig,
    has_own: bool,
}

#[async_trait]
impl Store for Knowing {
    penstock_store::delegate_store!(|this| this.rig.pool; root, capabilities, list, head, put, uploads, delete);

    async fn get_ranges(&self, object: &ObjectRef, ranges: &[ByteRange], deadline: Deadline) -> Result<GetResult> {
        let current = ObjectRef::current(object.key.clone());
        let (meta, bytes) = read_whole(&*self.rig.pool, &current, None, deadline).await?;
        let (mut manifest, mut routes) = (self.rig.manifest.clone(), Placements::default());
        if let Some(name) = object.key.as_str() {
            let own = self.has_own.then(|| self.rig.file("own", &bytes));
            manifest.objects = vec![Entry::new(object.key.clone(), meta.size)];
            routes.objects.insert(name.to_owned(), Placement { own, nodes: None });
        }
        let opened = Opened { store: self.rig.pool.clone(), prefix: Key::default() };
        let metrics = self.rig.metrics.clone();
        let routed = PoolStore::new(opened, None, &manifest, &routes, None, LocalReads::Threads, metrics)?;
        let got = routed.get_ranges(object, ranges, deadline).await?;
        assert!(object.key.as_str().is_none() || routed.shared.known.contains_key(&object.key));
        Ok(GetResult { meta, chunks: got.chunks })
    }
}

/// One test of the suite does not apply: a local file has no pool version (its name and size identify it), and a read
/// of an empty range sends no request.
#[tokio::test]
async fn known_objects_are_read_by_the_contract_whichever_way() {
    for has_own in [true, false] {
        suite::run_but(Arc::new(Knowing { rig: Rig::new(), has_own }), &["get_of_another_version_is_changed"]).await;
    }
}
