//! Atomics with the interface of `std` that count in [`super::count`], on top of those of `std` or
//! shuttle. They have only the operations that the project uses.

#[cfg(forebay_model)]
use shuttle::sync::atomic as raw;
#[cfg(not(forebay_model))]
use std::sync::atomic as raw;
use std::sync::atomic::Ordering;

use super::count;

macro_rules! counted {
    ($name:ident, $prim:ty) => {
        /// As in `std`, counted.
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name(raw::$name);

        impl $name {
            /// Creates an atomic with the value `value`.
            pub const fn new(value: $prim) -> Self {
                Self(raw::$name::new(value))
            }
            /// As in `std`.
            #[inline]
            pub fn load(&self, order: Ordering) -> $prim {
                self.0.load(order)
            }
            /// As in `std`.
            #[inline]
            pub fn store(&self, value: $prim, order: Ordering) {
                self.0.store(value, order);
            }
            /// As in `std`.
            #[inline]
            pub fn swap(&self, value: $prim, order: Ordering) -> $prim {
                count::rmw();
                self.0.swap(value, order)
            }
            /// As in `std`; counts a failure.
            #[inline]
            pub fn compare_exchange(
                &self,
                current: $prim,
                new: $prim,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$prim, $prim> {
                count::rmw();
                self.0.compare_exchange(current, new, success, failure).inspect_err(|_| {
                    count::cas_failed();
                })
            }
            /// As in `std`; counts a failure.
            #[inline]
            pub fn compare_exchange_weak(
                &self,
                current: $prim,
                new: $prim,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$prim, $prim> {
                count::rmw();
                self.0.compare_exchange_weak(current, new, success, failure).inspect_err(|_| {
                    count::cas_failed();
                })
            }
            /// The value, without synchronisation, because no other thread can access it.
            pub fn get_mut(&mut self) -> &mut $prim {
                self.0.get_mut()
            }
        }
    };
}

macro_rules! counted_arithmetic {
    ($name:ident, $prim:ty, $($op:ident),*) => {
        impl $name {
            $(
                /// As in `std`.
                #[inline]
                pub fn $op(&self, value: $prim, order: Ordering) -> $prim {
                    count::rmw();
                    self.0.$op(value, order)
                }
            )*
        }
    };
}

macro_rules! counted_integer {
    ($($name:ident $prim:ty),*) => {$(
        counted!($name, $prim);
        counted_arithmetic!($name, $prim, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_max);
    )*};
}

counted_integer!(
    AtomicU8 u8, AtomicU16 u16, AtomicU32 u32, AtomicU64 u64, AtomicUsize usize, AtomicI64 i64
);
counted!(AtomicBool, bool);
counted_arithmetic!(AtomicBool, bool, fetch_and, fetch_or);

/// As in `std`, counted.
#[derive(Debug)]
#[repr(transparent)]
pub struct AtomicPtr<T>(raw::AtomicPtr<T>);

impl<T> AtomicPtr<T> {
    /// Creates an atomic with the value `value`.
    pub const fn new(value: *mut T) -> Self {
        Self(raw::AtomicPtr::new(value))
    }
    /// As in `std`.
    #[inline]
    pub fn load(&self, order: Ordering) -> *mut T {
        self.0.load(order)
    }
    /// As in `std`.
    #[inline]
    pub fn store(&self, value: *mut T, order: Ordering) {
        self.0.store(value, order);
    }
    /// As in `std`.
    #[inline]
    pub fn swap(&self, value: *mut T, order: Ordering) -> *mut T {
        count::rmw();
        self.0.swap(value, order)
    }
    /// As in `std`; counts a failure.
    #[inline]
    pub fn compare_exchange(
        &self,
        current: *mut T,
        new: *mut T,
        success: Ordering,
        failure: Ordering,
    ) -> Result<*mut T, *mut T> {
        count::rmw();
        self.0.compare_exchange(current, new, success, failure).inspect_err(|_| {
            count::cas_failed();
        })
    }
}
