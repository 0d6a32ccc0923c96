package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	runtimectrl "github.com/fluxcd/pkg/runtime/controller"
	"github.com/fluxcd/pkg/runtime/logger"

	"github.com/stack-controller/stack-controller/internal/migrate"
)

const (
	// handBackCommand is the first argument of the command that hands all objects back to the Pulumi Kubernetes Operator.
	handBackCommand = "hand-back"
	// handBackRequestTimeout bounds each request to the API server.
	handBackRequestTimeout = 30 * time.Second
	// handBackPollInterval is the time between two checks of the objects that are being deleted.
	handBackPollInterval = time.Second
	// fluxNamespace is the namespace of the controller when the environment does not name another one.
	fluxNamespace = "flux-system"
)

// handBackOptions are the flags of the command.
type handBackOptions struct {
	namespace, controllerNamespace string
	dryRun                         bool
	accept                         []string
	timeout                        time.Duration
	client                         clientOptions
}

// handBack hands all objects back to the Pulumi Kubernetes Operator.
func handBack(ctx context.Context, args []string, stdout io.Writer) error {
	o, err := parseHandBackOptions(args, stdout)
	if errors.Is(err, errHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	logger.SetLogger(logger.NewLogger(logger.Options{LogEncoding: "console", LogLevel: "error"}))
	scheme, err := newScheme()
	if err != nil {
		return err
	}
	config, err := newRESTConfig(ctx, o.client)
	if err != nil {
		return err
	}
	config.Timeout = handBackRequestTimeout
	live, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("create a client: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.timeout, fmt.Errorf("--timeout of %s is over", o.timeout))
	defer cancel()
	return migrate.Run(ctrl.LoggerInto(ctx, ctrl.Log), migrate.Options{
		Client:              live,
		Namespace:           o.namespace,
		ControllerNamespace: o.controllerNamespace,
		DryRun:              o.dryRun,
		Accept:              o.accept,
		Out:                 stdout,
		PollInterval:        handBackPollInterval,
	})
}

// parseHandBackOptions reads the command line. Mistakes are usage errors.
func parseHandBackOptions(args []string, stdout io.Writer) (*handBackOptions, error) {
	o := &handBackOptions{}
	fs := newFlagSet(controllerName+" "+handBackCommand, "Hands all objects back to the Pulumi Kubernetes Operator, while neither of both runs.\n\n")
	controllerNamespace := cmp.Or(os.Getenv(runtimectrl.EnvRuntimeNamespace), fluxNamespace)
	fs.StringVar(&o.namespace, "namespace", "", "The namespace whose objects are handed back; all when it is empty.")
	fs.StringVar(&o.controllerNamespace, "controller-namespace", controllerNamespace, "The namespace of the controllers, where their leases say whether one still runs.")
	fs.BoolVar(&o.dryRun, "dry-run", false, "Say what would be done, and change nothing.")
	fs.StringSliceVar(&o.accept, "accept", nil, "The objects, as KIND/NAMESPACE/NAME, with which the operator may do what they forbid, for example update a suspended Stack. --dry-run names them.")
	fs.DurationVar(&o.timeout, "timeout", 15*time.Minute, "How long to wait for the pods of Workspaces to end.")
	o.client.bindFlags(fs)
	return o, parseFlags(fs, args, stdout, func() error {
		if o.timeout <= 0 {
			return errors.New("--timeout must be more than 0")
		}
		return nil
	})
}
