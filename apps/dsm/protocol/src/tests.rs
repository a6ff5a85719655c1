mod cluster;
mod memory;
mod network;
mod program;
mod random;
mod rules;
mod torture;
mod world;
