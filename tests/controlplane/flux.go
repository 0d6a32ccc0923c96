package controlplane

import (
	"context"
	"os"
	"path/filepath"
)

// fluxNamespace is where Flux's controllers believe they run.
const fluxNamespace = "flux-system"

const kustomizeController = "kustomize-controller"

func (cp *ControlPlane) startSourceController(ctx context.Context) error {
	storage := filepath.Join(cp.Dir, "source-controller", "storage")
	if err := os.MkdirAll(storage, 0o700); err != nil {
		return err
	}
	return cp.startServer(ctx, "source-controller", func() (launch, error) {
		addresses, err := cp.freeAddresses(2)
		if err != nil {
			return launch{}, err
		}
		cp.SourceAddr = addresses[0]
		health := addresses[1]
		return launch{
			args: []string{
				"--storage-path=" + storage,
				"--storage-addr=" + cp.SourceAddr,
				"--storage-adv-addr=" + cp.SourceAddr,
				"--health-addr=" + health,
				"--metrics-addr=0",
				"--enable-leader-election=false",
				"--watch-all-namespaces=true",
			},
			env:   cp.fluxEnvironment(),
			ready: cp.AnswersOK("http://" + health + "/readyz"),
		}, nil
	})
}

// startKustomizeController starts it with the rights of the administrator, as Flux installs it.
func (cp *ControlPlane) startKustomizeController(ctx context.Context) error {
	return cp.startServer(ctx, kustomizeController, func() (launch, error) {
		addresses, err := cp.freeAddresses(1)
		if err != nil {
			return launch{}, err
		}
		health := addresses[0]
		args := []string{
			"--health-addr=" + health,
			"--metrics-addr=0",
			"--enable-leader-election=false",
			"--watch-all-namespaces=true",
			"--requeue-dependency=1s",
		}
		if cp.EventsAddr != "" {
			args = append(args, "--events-addr="+cp.EventsAddr)
		}
		return launch{args: args, env: cp.fluxEnvironment(), ready: cp.AnswersOK("http://" + health + "/readyz")}, nil
	})
}

func (cp *ControlPlane) startNotificationController(ctx context.Context) error {
	return cp.startServer(ctx, "notification-controller", func() (launch, error) {
		addresses, err := cp.freeAddresses(3)
		if err != nil {
			return launch{}, err
		}
		cp.EventsAddr = "http://" + addresses[0] + "/"
		cp.ReceiverURL = "http://" + addresses[2]
		health := addresses[1]
		return launch{
			args: []string{
				"--events-addr=" + addresses[0],
				"--receiverAddr=" + addresses[2],
				"--health-addr=" + health,
				"--metrics-addr=0",
				"--enable-leader-election=false",
				"--watch-all-namespaces=true",
			},
			env:   cp.fluxEnvironment(),
			ready: cp.AnswersOK("http://" + health + "/readyz"),
		}, nil
	})
}

func (cp *ControlPlane) fluxEnvironment() []string {
	return []string{"KUBECONFIG=" + cp.KubeconfigPath, "RUNTIME_NAMESPACE=" + fluxNamespace}
}
