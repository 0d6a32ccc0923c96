package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/acl"
	runtimectrl "github.com/fluxcd/pkg/runtime/controller"
	"github.com/fluxcd/pkg/runtime/jitter"
	"github.com/fluxcd/pkg/runtime/leaderelection"
	"github.com/fluxcd/pkg/runtime/logger"

	"github.com/stack-controller/stack-controller/internal/features"
	"github.com/stack-controller/stack-controller/internal/runtime/pod"
)

// The values of --workspace-runtime.
const (
	runtimeProcess = "process"
	runtimePod     = "pod"
)

// options are the settings of the controller. They do not change after they were parsed.
type options struct {
	version bool

	metricsAddr, eventsAddr, healthAddr string

	concurrent              int
	requeueDependency       time.Duration
	gracefulShutdownTimeout time.Duration

	client         clientOptions
	log            logger.Options
	leaderElection leaderelection.Options
	acl            acl.Options
	rateLimiter    runtimectrl.RateLimiterOptions
	watch          watchOptions
	jitter         jitter.IntervalOptions
	features       features.Gates

	artifacts artifactOptions
	git       gitOptions
	workspace workspaceOptions

	// runtimeNamespace is the namespace that the controller runs in; empty when it is not known.
	runtimeNamespace string
}

// clientOptions limit the requests to the API server, unless the server itself limits them.
type clientOptions struct {
	qps   float32 // requests per second
	burst int
}

// watchOptions limit the Stacks that this controller looks after.
type watchOptions struct {
	allNamespaces bool
	labelSelector string
	selector      labels.Selector // labelSelector, parsed

	configsLabelSelector string
	configsSelector      labels.Selector // configsLabelSelector, parsed; nil when no Secrets and ConfigMaps are watched
}

// noConfigs as the value of --watch-configs-label-selector stands for no Secrets and ConfigMaps at all.
const noConfigs = "none"

// artifactOptions say how artifacts are fetched and stored.
type artifactOptions struct {
	httpRetries                            int
	httpTimeout                            time.Duration
	storagePath                            string
	maxStoreSize, maxSize, maxUnpackedSize resource.QuantityValue
	maxEntries                             int
}

// workspaceOptions say where and how pulumi runs.
type workspaceOptions struct {
	runtime string

	// For the process runtime.
	agentPath   string
	pulumiPath  string
	idleTimeout time.Duration

	// For the pod runtime.
	agentImage      string
	agentPullPolicy string
	clusterDomain   string
}

// usageError is a mistake in the command line or the environment.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// errHelp is returned after the help was printed, because it was asked for.
var errHelp = pflag.ErrHelp

// parseOptions reads the command line and the environment. Mistakes are usage errors.
func parseOptions(args []string, stdout io.Writer) (*options, error) {
	o := &options{runtimeNamespace: os.Getenv(runtimectrl.EnvRuntimeNamespace)}
	flags := o.flagSet()
	flags.SetOutput(stdout)
	err := flags.Parse(args)
	if errors.Is(err, pflag.ErrHelp) {
		return nil, errHelp
	}
	if err == nil {
		err = setFromEnvironment(flags)
	}
	if err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if err == nil {
		err = o.validate()
	}
	if err != nil {
		return nil, &usageError{err}
	}
	return o, nil
}

// setFromEnvironment sets flags that were not given to the values of variables, by which they are easier to set in a
// Deployment that is generated.
func setFromEnvironment(flags *pflag.FlagSet) error {
	for name, variable := range map[string]string{
		"agent-image":             "AGENT_IMAGE",
		"agent-image-pull-policy": "AGENT_IMAGE_PULL_POLICY",
	} {
		value := os.Getenv(variable)
		if value == "" || flags.Changed(name) {
			continue
		}
		if err := flags.Set(name, value); err != nil {
			return fmt.Errorf("environment variable %s: %w", variable, err)
		}
	}
	return nil
}

// flagSet declares all flags. Those that Flux's controllers have too have their names, defaults and meaning, except
// --no-cross-namespace-refs, which is on unless it is switched off.
func (o *options) flagSet() *pflag.FlagSet {
	fs := pflag.NewFlagSet(controllerName, pflag.ContinueOnError)
	fs.Usage = func() {
		fmt.Fprintf(fs.Output(), "Usage: %s [flags]\n\n%s", controllerName, fs.FlagUsagesWrapped(120))
	}
	fs.BoolVar(&o.version, "version", false, "Print the version and exit.")
	fs.StringVar(&o.metricsAddr, "metrics-addr", ":8080", "The address the metric endpoint binds to.")
	fs.StringVar(&o.eventsAddr, "events-addr", "", "The address of the events receiver, an http or https URL.")
	fs.StringVar(&o.healthAddr, "health-addr", ":9440", "The address the health endpoint binds to.")
	fs.IntVar(&o.concurrent, "concurrent", 4, "The number of concurrent reconciles of each kind.")
	fs.DurationVar(&o.requeueDependency, "requeue-dependency", 30*time.Second,
		"The interval at which failing dependencies are reevaluated.")
	fs.DurationVar(&o.gracefulShutdownTimeout, "graceful-shutdown-timeout", 600*time.Second,
		"The duration given to the controller to finish what it is doing before it ends.")
	o.client.bindFlags(fs)
	o.log.BindFlags(fs)
	o.leaderElection.BindFlags(fs)
	o.rateLimiter.BindFlags(fs)
	o.jitter.BindFlags(fs)
	o.features.BindFlags(fs)
	o.watch.bindFlags(fs)
	o.artifacts.bindFlags(fs)
	o.git.bindFlags(fs)
	o.workspace.bindFlags(fs)
	fs.BoolVar(&o.acl.NoCrossNamespaceRefs, "no-cross-namespace-refs", true,
		"When set to true, references between custom resources are allowed only if the reference and the referee are in the same namespace.")
	return fs
}

func (o *clientOptions) bindFlags(fs *pflag.FlagSet) {
	fs.Float32Var(&o.qps, "kube-api-qps", 50, "The maximum queries-per-second of requests sent to the Kubernetes API.")
	fs.IntVar(&o.burst, "kube-api-burst", 300, "The maximum burst queries-per-second of requests sent to the Kubernetes API.")
}

func (o *watchOptions) bindFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&o.allNamespaces, "watch-all-namespaces", true,
		"Watch for resources in all namespaces, if set to false it will only watch the runtime namespace.")
	fs.StringVar(&o.labelSelector, "watch-label-selector", "",
		"Watch for resources with matching labels e.g. 'sharding.fluxcd.io/key=shard1'.")
	fs.StringVar(&o.configsLabelSelector, "watch-configs-label-selector", meta.LabelKeyWatch+"="+meta.LabelValueWatchEnabled,
		"Watch for ConfigMaps and Secrets with matching labels, of which only the metadata is read; a change of one updates the Stacks that use it. "+
			"'owner!=helm' watches all but the releases of Helm, 'none' watches none.")
}

// parse parses the selectors.
func (o *watchOptions) parse() (err error) {
	if o.selector, err = labels.Parse(o.labelSelector); err != nil {
		return fmt.Errorf("--watch-label-selector: %w", err)
	}
	if o.configsLabelSelector == noConfigs {
		return nil
	}
	if o.configsSelector, err = labels.Parse(o.configsLabelSelector); err != nil {
		return fmt.Errorf("--watch-configs-label-selector: %w", err)
	}
	return nil
}

func (o *artifactOptions) bindFlags(fs *pflag.FlagSet) {
	fs.IntVar(&o.httpRetries, "http-retry", 9,
		"The maximum number of retries when failing to fetch artifacts over HTTP, as far as --http-timeout leaves time for them.")
	fs.DurationVar(&o.httpTimeout, "http-timeout", 30*time.Second, "The timeout of fetching an artifact over HTTP, retries included.")
	fs.StringVar(&o.storagePath, "storage-path", "/data", "The directory of fetched artifacts and workspaces.")
	quantity := func(target *resource.QuantityValue, name, value, usage string) {
		target.Quantity = resource.MustParse(value)
		fs.Var(target, name, usage)
	}
	quantity(&o.maxStoreSize, "storage-max-size", "4Gi",
		"The size of all stored artifacts at which those are removed that were not used for the longest time.")
	quantity(&o.maxSize, "artifact-max-size", "256Mi", "The maximum size of an artifact.")
	quantity(&o.maxUnpackedSize, "artifact-max-unpacked-size", "1Gi", "The maximum size of an artifact without its compression.")
	fs.IntVar(&o.maxEntries, "artifact-max-entries", 100_000, "The maximum number of files and directories in an artifact.")
}

func (o *workspaceOptions) bindFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.runtime, "workspace-runtime", runtimeProcess,
		"Where pulumi runs: 'pod' is a pod for each workspace; 'process' is a child process of the controller, with the controller's identity.")
	fs.StringVar(&o.agentPath, "agent-path", "",
		"The executable of the workspace agent, for the process runtime. The default is 'agent' in the directory of the controller's executable.")
	fs.StringVar(&o.pulumiPath, "pulumi", "pulumi", "The pulumi CLI, for the process runtime: a path, or a name to find in PATH.")
	fs.DurationVar(&o.idleTimeout, "workspace-idle-timeout", 5*time.Minute,
		"The duration after which the agent of a workspace without work ends, for the process runtime; it is started again when needed.")
	fs.StringVar(&o.agentImage, "agent-image", "",
		"The image with the workspace agent, which the pod runtime needs. The default is the environment variable AGENT_IMAGE.")
	fs.StringVar(&o.agentPullPolicy, "agent-image-pull-policy", string(corev1.PullIfNotPresent),
		"When the image with the workspace agent is pulled: Always, IfNotPresent or Never. The environment variable AGENT_IMAGE_PULL_POLICY sets it as well.")
	fs.StringVar(&o.clusterDomain, "cluster-domain", pod.DefaultClusterDomain, "The DNS domain of the cluster, for the addresses of workspace pods.")
}

// validate tells what cannot work, so that a controller never starts with a setting that it would have to ignore.
func (o *options) validate() error {
	if o.version {
		return nil
	}
	if err := errors.Join(o.validateRanges(), o.validateLog()); err != nil {
		return err
	}
	if err := o.features.Validate(); err != nil {
		return fmt.Errorf("--feature-gates: %w", err)
	}
	if !o.watch.allNamespaces && o.runtimeNamespace == "" {
		return fmt.Errorf("--watch-all-namespaces=false needs the environment variable %s", runtimectrl.EnvRuntimeNamespace)
	}
	if err := o.watch.parse(); err != nil {
		return err
	}
	if err := o.git.read(); err != nil {
		return err
	}
	return o.workspace.validate()
}

func (o *workspaceOptions) validate() error {
	switch o.runtime {
	case runtimeProcess:
		return nil
	case runtimePod:
	default:
		return fmt.Errorf("--workspace-runtime must be %s or %s, not %q", runtimePod, runtimeProcess, o.runtime)
	}
	policies := []string{string(corev1.PullAlways), string(corev1.PullIfNotPresent), string(corev1.PullNever)}
	switch {
	case o.agentImage == "":
		return errors.New("--workspace-runtime=pod needs --agent-image or the environment variable AGENT_IMAGE")
	case !slices.Contains(policies, o.agentPullPolicy):
		return fmt.Errorf("--agent-image-pull-policy must be Always, IfNotPresent or Never, not %q", o.agentPullPolicy)
	case len(validation.IsDNS1123Subdomain(o.clusterDomain)) > 0:
		return fmt.Errorf("--cluster-domain must be a DNS domain, not %q", o.clusterDomain)
	}
	return nil
}

func (o *options) validateRanges() error {
	for _, minimum := range []struct {
		flag  string
		value int64
		least int64
	}{
		{"concurrent", int64(o.concurrent), 1},
		{"http-retry", int64(o.artifacts.httpRetries), 0},
		{"storage-max-size", o.artifacts.maxStoreSize.Value(), 1},
		{"artifact-max-size", o.artifacts.maxSize.Value(), 1},
		{"artifact-max-unpacked-size", o.artifacts.maxUnpackedSize.Value(), 1},
		{"artifact-max-entries", int64(o.artifacts.maxEntries), 1},
	} {
		if minimum.value < minimum.least {
			return fmt.Errorf("--%s must be at least %d", minimum.flag, minimum.least)
		}
	}
	for flag, value := range map[string]time.Duration{
		"requeue-dependency":     o.requeueDependency,
		"http-timeout":           o.artifacts.httpTimeout,
		"git-timeout":            o.git.timeout,
		"git-checkout-timeout":   o.git.checkout,
		"min-retry-delay":        o.rateLimiter.MinRetryDelay,
		"max-retry-delay":        o.rateLimiter.MaxRetryDelay,
		"workspace-idle-timeout": o.workspace.idleTimeout,
	} {
		if value <= 0 {
			return fmt.Errorf("--%s must be more than 0", flag)
		}
	}
	switch {
	case o.artifacts.maxStoreSize.Cmp(o.artifacts.maxSize.Quantity) < 0:
		return errors.New("--storage-max-size must not be less than --artifact-max-size")
	case o.rateLimiter.MaxRetryDelay < o.rateLimiter.MinRetryDelay:
		return errors.New("--max-retry-delay must not be less than --min-retry-delay")
	case o.jitter.Percentage >= 100:
		return errors.New("--interval-jitter-percentage must be less than 100")
	}
	return nil
}

// validateLog refuses what Flux's logger would silently replace by its default.
func (o *options) validateLog() error {
	if !slices.Contains([]string{"json", "console"}, o.log.LogEncoding) {
		return fmt.Errorf("--log-encoding must be json or console, not %q", o.log.LogEncoding)
	}
	if !slices.Contains([]string{"trace", "debug", "info", "error"}, o.log.LogLevel) {
		return fmt.Errorf("--log-level must be trace, debug, info or error, not %q", o.log.LogLevel)
	}
	return nil
}
