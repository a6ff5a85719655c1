mod memory;
mod network;
mod program;
mod random;
mod torture;
mod world;
