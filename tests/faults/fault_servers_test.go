package faults_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/stack-controller/stack-controller/tests/faults/campaign"
)

var clusterFaults = []campaign.Fault{
	{Kind: "API server frozen for 1 s", Shortest: time.Second, Longest: time.Second, Inject: hitting(freezeServer("kube-apiserver"))},
	{Kind: "API server frozen for 30 s", Shortest: 30 * time.Second, Longest: 30 * time.Second, Inject: hitting(freezeServer("kube-apiserver"))},
	{Kind: "API server frozen for 300 s", Shortest: outage, Longest: outage, Rare: true, Inject: hitting(freezeServer("kube-apiserver"))},
	{Kind: "API server away for 300 s", Rare: true, Inject: hitting(stopAPIServer)},
	{Kind: "API server restarted", Inject: hitting(restartAPIServer)},
	{Kind: "connections to the API server cut", Short: true, Inject: hitting(cutConnections)},
	{Kind: "no way to the API server", Shortest: time.Second, Longest: 5 * time.Second, Inject: hitting(noWay)},
	{Kind: "etcd restarted", Inject: hitting(restartEtcd)},
}

func freezeServer(name string) injection {
	return func(_ context.Context, on *target) (campaign.Heal, error) {
		if err := signalServer(on.system.ControlPlane, name, syscall.SIGSTOP); err != nil {
			return nil, err
		}
		return func(context.Context) error { return signalServer(on.system.ControlPlane, name, syscall.SIGCONT) }, nil
	}
}

// outage is longer than every lease, lock and timeout of a request.
const outage = 300 * time.Second

func stopAPIServer(ctx context.Context, on *target) (campaign.Heal, error) {
	return nil, on.restartAPIServer(ctx, outage)
}

func restartAPIServer(ctx context.Context, on *target) (campaign.Heal, error) {
	return nil, on.restartAPIServer(ctx, time.Duration(on.Random.IntN(1000))*time.Millisecond)
}

func cutConnections(_ context.Context, on *target) (campaign.Heal, error) {
	on.api.cut(false)
	return nil, nil
}

func noWay(_ context.Context, on *target) (campaign.Heal, error) {
	on.api.cut(true)
	return func(context.Context) error {
		on.api.cut(false)
		return nil
	}, nil
}

func restartEtcd(ctx context.Context, on *target) (campaign.Heal, error) {
	cp := on.system.ControlPlane
	ready := func(ctx context.Context) error {
		connection, err := (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(cp.Dir, "etcd", "client:0"))
		if err != nil {
			return err
		}
		return connection.Close()
	}
	return nil, restartServer(ctx, cp, "etcd", ready, nil, nil)
}

var requestFaults = []campaign.Fault{
	{Kind: "writes refused as conflicts", Shortest: time.Second, Longest: 6 * time.Second, Inject: hitting(spoilWrites(writesRefused))},
	{
		Kind: "answers to writes lost", Short: true, Shortest: time.Second, Longest: 6 * time.Second,
		Inject: hitting(spoilWrites(writesUnanswered)),
	},
}

// spoilWrites spoils each write of the controller, each second or each third one.
func spoilWrites(how int32) injection {
	return func(_ context.Context, on *target) (campaign.Heal, error) {
		before := on.gate.hits.Load()
		on.gate.spoil(how, 1+on.Random.Int32N(3))
		return func(context.Context) error {
			on.gate.mode.Store(writesDone)
			on.Missed = on.gate.hits.Load() == before
			return nil
		}, nil
	}
}

var sourceFaults = []campaign.Fault{
	{Kind: "source-controller frozen", Shortest: time.Second, Longest: 5 * time.Second, Inject: hitting(freezeServer("source-controller"))},
	{Kind: "source-controller restarted", Short: true, Inject: hitting(restartSource)},
	{Kind: "artifacts truncated", Shortest: time.Second, Longest: 5 * time.Second, Inject: hitting(serve(servedTruncated))},
	{Kind: "artifacts wrong", Short: true, Shortest: time.Second, Longest: 5 * time.Second, Inject: hitting(serve(servedWrong))},
	{Kind: "artifacts unavailable", Shortest: time.Second, Longest: 5 * time.Second, Inject: hitting(serve(servedNotAtAll))},
}

func restartSource(ctx context.Context, on *target) (campaign.Heal, error) {
	return nil, on.restartSourceController(ctx, nil)
}

func serve(how int32) injection {
	return func(_ context.Context, on *target) (campaign.Heal, error) {
		before := on.mirror.hits.Load()
		on.mirror.mode.Store(how)
		return func(context.Context) error {
			on.mirror.mode.Store(servedWell)
			on.Missed = on.mirror.hits.Load() == before
			return nil
		}, nil
	}
}

var backendFaults = []campaign.Fault{
	{Kind: "backend locked by somebody else", Shortest: time.Second, Longest: 6 * time.Second, Inject: hitting(lockBackend)},
	{Kind: "backend empty", Short: true, Shortest: 3 * time.Second, Longest: 6 * time.Second,
		Holds: []string{theController, theBackend}, Inject: hitting(emptyBackend)},
	{Kind: "backend away", Short: true, Shortest: time.Second, Longest: 4 * time.Second, Inject: hitting(moveBackend)},
}

// lockBackend leaves the lock of a process on a machine that nobody knows.
func lockBackend(_ context.Context, on *target) (campaign.Heal, error) {
	locks := filepath.Join(on.backend(), ".pulumi", "locks", "organization", on.Any().Name, "dev")
	lock := filepath.Join(locks, "5f0cbd17-2b8a-4d4e-9a54-6f4a4c4f6a10.json")
	if err := os.MkdirAll(locks, 0o700); err != nil {
		return nil, err
	}
	content := `{"pid":4242,"username":"somebody","hostname":"elsewhere","timestamp":"` + time.Now().Format(time.RFC3339) + `"}`
	if err := os.WriteFile(lock, []byte(content), 0o600); err != nil {
		return nil, err
	}
	return func(context.Context) error { return os.Remove(lock) }, nil
}

// moveBackend takes the state away, as a network file system that does not answer. A file in its place keeps pulumi from making an
// empty one: it would deploy everything once more.
func moveBackend(_ context.Context, on *target) (campaign.Heal, error) {
	away := on.backend() + ".away"
	if err := os.Rename(on.backend(), away); err != nil {
		return nil, err
	}
	return func(context.Context) error {
		return errors.Join(os.Remove(on.backend()), os.Rename(away, on.backend()))
	}, os.WriteFile(on.backend(), nil, 0o600)
}

// emptyBackend leaves an empty directory where the state was, as a volume that is not mounted. For pulumi that is a backend without
// stacks. It happens between two operations: what one that runs writes into the empty directory is lost, and nobody could know.
func emptyBackend(ctx context.Context, on *target) (campaign.Heal, error) {
	process, _ := on.main.current()
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(5 * hunt); time.Now().Before(deadline); campaign.Wait(ctx, campaign.PollInterval) {
		if on.Missed = len(on.processes()) > 0; !on.Missed {
			break
		}
	}
	if on.Missed {
		return nil, process.Signal(syscall.SIGCONT)
	}
	away := on.backend() + ".away"
	if err := os.Rename(on.backend(), away); err != nil {
		return nil, errors.Join(err, process.Signal(syscall.SIGCONT))
	}
	return func(context.Context) error {
		empty := on.backend() + ".empty"
		return errors.Join(os.Rename(on.backend(), empty), os.Rename(away, on.backend()), os.RemoveAll(empty))
	}, errors.Join(os.Mkdir(on.backend(), 0o700), process.Signal(syscall.SIGCONT))
}
