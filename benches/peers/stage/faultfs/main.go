// SPDX-License-Identifier: Apache-2.0

// faultfs mounts a folder at another path and makes some calls fail, as on a broken or a full disk.
//
//	faultfs -rate 0.01 -seed 7 -errors EIO,ENOSPC -calls write,fsync,rename FOLDER MOUNT
//
// It prints "ready" when mounted. On SIGTERM it unmounts and prints the number of injected faults of each kind as JSON.
// The seed determines which calls fail. Writes are not cached, so a failing write fails at the call. Needs root.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

type faults struct {
	sync.Mutex
	random *rand.Rand
	rate   float64
	calls  map[string]bool
	errors []string
	Counts map[string]int
}

var known = map[string]syscall.Errno{"EIO": syscall.EIO, "ENOSPC": syscall.ENOSPC, "EDQUOT": syscall.EDQUOT}

// strike returns the error to inject into this call, or 0.
func (f *faults) strike(call string) syscall.Errno {
	f.Lock()
	defer f.Unlock()
	if !f.calls[call] || f.random.Float64() >= f.rate {
		return 0
	}
	name := f.errors[f.random.Intn(len(f.errors))]
	f.Counts[call+" "+name]++
	return known[name]
}

type node struct {
	fs.LoopbackNode
	faults *faults
}

// backing has all methods of go-fuse's own file; a wrapper must forward them all.
type backing interface {
	fs.FileReader
	fs.FileWriter
	fs.FileFsyncer
	fs.FileFlusher
	fs.FileReleaser
	fs.FileGetattrer
	fs.FileSetattrer
	fs.FileAllocater
	fs.FileLseeker
}

type file struct {
	backing
	faults *faults
}

func (f *file) Write(ctx context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	if errno := f.faults.strike("write"); errno != 0 {
		// A full disk still stores the first bytes.
		if len(data) > 1 {
			f.backing.Write(ctx, data[:len(data)/2], off)
		}
		return 0, errno
	}
	return f.backing.Write(ctx, data, off)
}

func (f *file) Fsync(ctx context.Context, flags uint32) syscall.Errno {
	if errno := f.faults.strike("fsync"); errno != 0 {
		return errno
	}
	return f.backing.Fsync(ctx, flags)
}

func (f *file) Read(ctx context.Context, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	if errno := f.faults.strike("read"); errno != 0 {
		return nil, errno
	}
	return f.backing.Read(ctx, dest, off)
}

func (n *node) wrapped(handle fs.FileHandle) fs.FileHandle {
	if inner, ok := handle.(backing); ok {
		return &file{inner, n.faults}
	}
	return handle
}

func (n *node) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	handle, fuseFlags, errno := n.LoopbackNode.Open(ctx, flags)
	return n.wrapped(handle), fuseFlags, errno
}

func (n *node) Create(ctx context.Context, name string, flags uint32, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	if errno := n.faults.strike("create"); errno != 0 {
		return nil, nil, 0, errno
	}
	inode, handle, fuseFlags, errno := n.LoopbackNode.Create(ctx, name, flags, mode, out)
	return inode, n.wrapped(handle), fuseFlags, errno
}

func (n *node) Rename(ctx context.Context, name string, parent fs.InodeEmbedder, newName string, flags uint32) syscall.Errno {
	if errno := n.faults.strike("rename"); errno != 0 {
		return errno
	}
	return n.LoopbackNode.Rename(ctx, name, parent, newName, flags)
}

func main() {
	rate := flag.Float64("rate", 0.01, "share of calls that fail")
	seed := flag.Int64("seed", 1, "where faults are drawn from")
	errors := flag.String("errors", "EIO,ENOSPC", "which errors")
	calls := flag.String("calls", "write,fsync,rename,create", "which calls: write, fsync, read, rename, create")
	flag.Parse()
	if flag.NArg() != 2 {
		fmt.Fprintln(os.Stderr, "usage: faultfs [flags] FOLDER MOUNT")
		os.Exit(2)
	}
	state := &faults{random: rand.New(rand.NewSource(*seed)), rate: *rate, calls: map[string]bool{}, errors: strings.Split(*errors, ","), Counts: map[string]int{}}
	for _, call := range strings.Split(*calls, ",") {
		state.calls[call] = true
	}
	var stat syscall.Stat_t
	if err := syscall.Stat(flag.Arg(0), &stat); err != nil {
		fmt.Fprintln(os.Stderr, flag.Arg(0), err)
		os.Exit(3)
	}
	root := &fs.LoopbackRoot{Path: flag.Arg(0), Dev: uint64(stat.Dev)}
	root.NewNode = func(root *fs.LoopbackRoot, _ *fs.Inode, _ string, _ *syscall.Stat_t) fs.InodeEmbedder {
		return &node{fs.LoopbackNode{RootData: root}, state}
	}
	options := &fs.Options{MountOptions: fuse.MountOptions{FsName: "faultfs", Name: "faultfs", DirectMountStrict: true, AllowOther: true}}
	server, err := fs.Mount(flag.Arg(1), root.NewNode(root, nil, "", &stat), options)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mount:", err)
		os.Exit(3)
	}
	fmt.Println("ready")
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-ended
		for server.Unmount() != nil {
			syscall.Unmount(flag.Arg(1), 2) // lazy unmount: open files stay usable, new opens fail
			break
		}
	}()
	server.Wait()
	counts, _ := json.Marshal(state.Counts)
	fmt.Println(string(counts))
}
