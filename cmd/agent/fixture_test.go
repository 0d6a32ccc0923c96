package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/opencontainers/go-digest"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/agent/server"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// patience is how long a test waits for something that has to happen. A busy machine starts pulumi slowly.
const patience = 90 * time.Second

// actAsAgent is the variable that makes the test binary the agent, so that tests run the real agent in a process of its own.
const actAsAgent = "TEST_ACT_AS_AGENT"

func TestMain(m *testing.M) {
	if os.Getenv(actAsAgent) != "" {
		main()
		os.Exit(0)
	}
	if os.Getenv(actAsParent) != "" {
		os.Exit(parentOfOrphans())
	}
	os.Exit(m.Run())
}

// languageHost is a script that makes programs wait as long as the gate, which is a file, exists. Then it runs the real host.
const languageHost = `#!/bin/sh
while [ -e %[1]q ]; do sleep 0.05; done
exec %[2]q "$@"
`

// bench is a directory for agents, with the real pulumi CLI and a backend on the disk.
type bench struct {
	*WithT
	t                           *testing.T
	dir, socket, bin, gate, cli string
	log                         *lockedBuffer
}

func newBench(t *testing.T) *bench {
	t.Helper()
	root, err := os.MkdirTemp("", "agent") // t.TempDir may be too long for a socket
	g := NewWithT(t)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	b := &bench{
		WithT: g, t: t, dir: filepath.Join(root, "agent"), socket: filepath.Join(root, "s"), bin: filepath.Join(root, "bin"),
		gate: filepath.Join(root, "gate"), cli: tool(t, "pulumi"), log: &lockedBuffer{},
	}
	g.Expect(os.MkdirAll(b.bin, 0o755)).To(Succeed())
	g.Expect(os.Mkdir(filepath.Join(root, "state"), 0o755)).To(Succeed())
	b.script("pulumi-language-yaml", fmt.Sprintf(languageHost, b.gate, tool(t, "pulumi-language-yaml")))
	return b
}

// tool returns the path of a real program, which is built once for the machine.
func tool(t *testing.T, name string) string {
	t.Helper()
	path, err := tools.Path(context.Background(), name, func(progress string) { t.Log(progress) })
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// script writes a script into a directory on the PATH of the agent, and returns its path.
func (b *bench) script(name, content string) string {
	b.t.Helper()
	path := filepath.Join(b.bin, name)
	b.Expect(os.WriteFile(path, []byte(content), 0o755)).To(Succeed())
	return path
}

// closeGate makes programs wait until the function that it returns is called.
func (b *bench) closeGate() (open func()) {
	b.t.Helper()
	b.Expect(os.WriteFile(b.gate, nil, 0o600)).To(Succeed())
	open = sync.OnceFunc(func() { _ = os.Remove(b.gate) })
	b.t.Cleanup(open)
	return open
}

// agent is a process with a client.
type agent struct {
	*client.Client
	process *os.Process
	// exit receives the exit code once the process has ended, -1 after a signal.
	exit chan int
}

// start runs an agent of the bench, and waits until it answers.
func (b *bench) start(flags ...string) *agent {
	b.t.Helper()
	args := []string{"serve", "--listen=unix:" + b.socket, "--dir=" + b.dir, "--pulumi=" + b.cli, "--log-level=debug"}
	cmd := exec.Command(os.Args[0], append(args, flags...)...)
	cmd.Env = append(os.Environ(), actAsAgent+"=1", "PATH="+b.bin+":"+os.Getenv("PATH"), "HOME="+server.Home(b.dir))
	cmd.Stderr = b.log
	// An orphan that has the log open must not keep the test from noticing the end of the agent.
	cmd.WaitDelay = time.Second
	b.Expect(cmd.Start()).To(Succeed())
	a := &agent{process: cmd.Process, exit: make(chan int, 1)}
	go func() {
		_ = cmd.Wait()
		a.exit <- cmd.ProcessState.ExitCode()
	}()
	var err error
	a.Client, err = client.New("unix:"+b.socket, client.Options{})
	b.Expect(err).NotTo(HaveOccurred())
	b.t.Cleanup(func() {
		_ = a.Close()
		_ = cmd.Process.Kill()
		if b.t.Failed() {
			b.t.Log(b.log.String())
		}
	})
	b.Eventually(func() error { _, err := a.GetInfo(b.t.Context()); return err }).WithTimeout(patience).Should(Succeed())
	return a
}

// signal sends the signal and returns the exit code of the agent.
func (b *bench) signal(a *agent, signal syscall.Signal) int {
	b.t.Helper()
	b.Expect(a.process.Signal(signal)).To(Succeed())
	var code int
	b.Eventually(a.exit).WithTimeout(patience).Should(Receive(&code))
	return code
}

// passphrase is the passphrase of every stack in these tests. It must not appear anywhere.
const passphrase = "canary-passphrase-41c8"

// update returns the request for an update from the artifact, with the backend of the bench.
func (b *bench) update(id, digest string) *agentpb.StartOperationRequest {
	variable := func(name, value string, secret bool) *agentpb.EnvironmentVariable {
		return &agentpb.EnvironmentVariable{Name: name, Secret: secret, Value: &agentpb.EnvironmentVariable_Text{Text: value}}
	}
	return &agentpb.StartOperationRequest{
		Id: id, Kind: agentpb.OperationKind_OPERATION_KIND_UP, Stack: "dev", CreateStack: true,
		Source: &agentpb.StartOperationRequest_Artifact{Artifact: &agentpb.ArtifactSource{Digest: digest}},
		Env: []*agentpb.EnvironmentVariable{
			variable("PULUMI_BACKEND_URL", "file://"+filepath.Join(filepath.Dir(b.dir), "state"), false),
			variable("PULUMI_CONFIG_PASSPHRASE", passphrase, true),
		},
	}
}

// push delivers a program to the agent and returns its digest.
func (b *bench) push(a *agent, program string) string {
	b.t.Helper()
	var packed bytes.Buffer
	zipped := gzip.NewWriter(&packed)
	archive := tar.NewWriter(zipped)
	b.Expect(archive.WriteHeader(&tar.Header{Name: "Pulumi.yaml", Mode: 0o644, Size: int64(len(program))})).To(Succeed())
	b.Expect(archive.Write([]byte(program))).Error().NotTo(HaveOccurred())
	b.Expect(archive.Close()).To(Succeed())
	b.Expect(zipped.Close()).To(Succeed())
	digest := digest.FromBytes(packed.Bytes()).String()
	b.Expect(a.PushSource(b.t.Context(), digest, int64(packed.Len()), &packed)).To(Succeed())
	return digest
}

// startUpdate starts an update and returns once pulumi runs.
func (b *bench) startUpdate(a *agent, request *agentpb.StartOperationRequest) {
	b.t.Helper()
	b.Expect(a.StartOperation(b.t.Context(), request)).Error().NotTo(HaveOccurred())
	b.Eventually(func() agentpb.OperationState {
		operation, err := a.GetOperation(b.t.Context(), request.GetId())
		b.Expect(err).NotTo(HaveOccurred())
		return operation.GetState()
	}).WithTimeout(patience).Should(Equal(agentpb.OperationState_OPERATION_STATE_RUNNING))
}

// startGated runs an agent and starts an update with the id "a", whose program waits until open is called.
func (b *bench) startGated() (a *agent, digest string, open func()) {
	b.t.Helper()
	a = b.start()
	digest = b.push(a, program(1))
	open = b.closeGate()
	b.startUpdate(a, b.update("a", digest))
	return a, digest, open
}

// succeed runs the operation, which has to succeed, and returns it with its outputs.
func (b *bench) succeed(a *agent, request *agentpb.StartOperationRequest) *agentpb.Operation {
	b.t.Helper()
	b.Expect(a.StartOperation(b.t.Context(), request)).Error().NotTo(HaveOccurred())
	final := b.wait(a, request.GetId())
	b.Expect(final.GetState()).To(Equal(agentpb.OperationState_OPERATION_STATE_SUCCEEDED), final.GetMessage())
	return final
}

// wait returns the operation with its outputs once it is final.
func (b *bench) wait(a *agent, id string) *agentpb.Operation {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	b.Expect(a.WatchOperation(ctx, id, func(*agentpb.Operation) {})).Error().NotTo(HaveOccurred())
	final, err := a.GetOperation(ctx, id)
	b.Expect(err).NotTo(HaveOccurred())
	return final
}

// lockedBuffer is a bytes.Buffer for concurrent use.
type lockedBuffer struct {
	mu      sync.Mutex
	content bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.content.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.content.String()
}
