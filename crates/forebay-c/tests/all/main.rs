//! The C interface: its header compared with the sources, its functions, and programs in C and C++ that use it.

mod functions;
mod header;
mod programs;
