// SPDX-License-Identifier: Apache-2.0
//! Macro for store wrappers. It forwards methods unchanged to the inner store.

/// Forwards the named methods of [`Store`](crate::Store) to the inner store. Use it in an `impl Store`:
/// `delegate_store!(|this| this.inner; root, capabilities, head);`.
///
/// Each forwarding method returns the future of the inner store directly, in the form that `async_trait` generates.
/// Forwarding therefore allocates no memory.
#[macro_export]
macro_rules! delegate_store {
    (|$this:ident| $inner:expr; root $(, $($more:ident),+)?) => {
        fn root(&self) -> &::penstock_types::Url {
            let $this = self;
            $inner.root()
        }
        $($crate::delegate_store!(|$this| $inner; $($more),+);)?
    };
    (|$this:ident| $inner:expr; capabilities $(, $($more:ident),+)?) => {
        fn capabilities(&self) -> $crate::Capabilities {
            let $this = self;
            $inner.capabilities()
        }
        $($crate::delegate_store!(|$this| $inner; $($more),+);)?
    };
    (|$this:ident| $inner:expr; list $(, $($more:ident),+)?) => {
        fn list(
            &self,
            prefix: &::penstock_types::Key,
            after: Option<&::penstock_types::Key>,
            deadline: ::penstock_types::Deadline,
        ) -> $crate::ListStream<'_> {
            let $this = self;
            $inner.list(prefix, after, deadline)
        }
        $($crate::delegate_store!(|$this| $inner; $($more),+);)?
    };
    (|$this:ident| $inner:expr; head $(, $($more:ident),+)?) => {
        fn head<'store, 'key, 'async_trait>(
            &'store self,
            key: &'key ::penstock_types::Key,
            deadline: ::penstock_types::Deadline,
        ) -> ::std::pin::Pin<Box<dyn ::std::future::Future<Output = ::penstock_types::Result<$crate::Meta>> + Send + 'async_trait>>
        where
            'store: 'async_trait,
            'key: 'async_trait,
            Self: 'async_trait,
        {
            let $this = self;
            $inner.head(key, deadline)
        }
        $($crate::delegate_store!(|$this| $inner; $($more),+);)?
    };
    (|$this:ident| $inner:expr; put $(, $($more:ident),+)?) => {
        fn put<'store, 'key, 'options, 'async_trait>(
            &'store self,
            key: &'key ::penstock_types::Key,
            parts: Vec<::bytes::Bytes>,
            options: &'options $crate::PutOptions,
            deadline: ::penstock_types::Deadline,
        ) -> ::std::pin::Pin<Box<dyn ::std::future::Future<Output = ::penstock_types::Result<$crate::Meta>> + Send + 'async_trait>>
        where
            'store: 'async_trait,
            'key: 'async_trait,
            'options: 'async_trait,
            Self: 'async_trait,
        {
            let $this = self;
            $inner.put(key, parts, options, deadline)
        }
        $($crate::delegate_store!(|$this| $inner; $($more),+);)?
    };
    (|$this:ident| $inner:expr; uploads $(, $($more:ident),+)?) => {
        fn multipart(&self) -> Option<&dyn $crate::MultipartStore> {
            let $this = self;
            $inner.multipart()
        }
        $($crate::delegate_store!(|$this| $inner; $($more),+);)?
    };
    (|$this:ident| $inner:expr; delete $(, $($more:ident),+)?) => {
        fn delete<'store, 'keys, 'async_trait>(
            &'store self,
            keys: &'keys [::penstock_types::Key],
            deadline: ::penstock_types::Deadline,
        ) -> ::std::pin::Pin<Box<dyn ::std::future::Future<Output = ::penstock_types::Result<()>> + Send + 'async_trait>>
        where
            'store: 'async_trait,
            'keys: 'async_trait,
            Self: 'async_trait,
        {
            let $this = self;
            $inner.delete(keys, deadline)
        }
        $($crate::delegate_store!(|$this| $inner; $($more),+);)?
    };
}
