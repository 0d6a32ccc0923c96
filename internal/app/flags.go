package app

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fluxcd/pkg/runtime/acl"
	runtimectrl "github.com/fluxcd/pkg/runtime/controller"
	"github.com/fluxcd/pkg/runtime/features"
	"github.com/fluxcd/pkg/runtime/jitter"
	"github.com/fluxcd/pkg/runtime/leaderelection"
	"github.com/fluxcd/pkg/runtime/logger"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod"
	"github.com/stack-controller/stack-controller/internal/source/git"
	"github.com/stack-controller/stack-controller/internal/spiffe"
)

// options are the settings of the controller. They do not change after they were parsed.
type options struct {
	version bool

	metricsAddr, eventsAddr, healthAddr, pprofAddr string

	concurrent              int
	maxOperations           int
	requeueDependency       time.Duration
	gracefulShutdownTimeout time.Duration

	client         clientOptions
	log            logger.Options
	leaderElection leaderelection.Options
	acl            acl.Options
	rateLimiter    runtimectrl.RateLimiterOptions
	jitter         jitter.IntervalOptions
	features       features.FeatureGates
	watch          runtimectrl.WatchOptions
	selector       labels.Selector // watch.LabelSelector, parsed
	configs        labels.Selector // watch.ConfigsLabelSelector, parsed; nil when no Secrets and ConfigMaps are watched

	// dependencyKinds are the kinds of dependencyKindNames, parsed.
	dependencyKindNames []string
	dependencyKinds     []schema.GroupKind

	// tracing sends traces of updates.
	tracing bool
	// requireVerified allows only sources that Flux has verified.
	requireVerified bool
	// externalArtifact is the state of the feature gate ExternalArtifact.
	externalArtifact bool

	artifacts artifactOptions
	mtls      mutualTLSOptions
	git       gitOptions
	workspace workspaceOptions

	// runtimeNamespace is the namespace that the controller runs in; empty when it is not known.
	runtimeNamespace string
}

// clientOptions limit the requests to the API server, unless the server itself limits them. The options of fluxcd/pkg/runtime/client would
// add 145 packages as dependencies, among them kubectl's printers.
type clientOptions struct {
	qps   float32 // requests per second
	burst int
}

// artifactOptions say how artifacts are fetched and stored.
type artifactOptions struct {
	httpRetries                            int
	httpTimeout                            time.Duration
	storagePath                            string
	maxStoreSize, maxSize, maxUnpackedSize resource.QuantityValue
	maxEntries                             int
}

// mutualTLSOptions turn on mutual TLS with SPIFFE identities.
type mutualTLSOptions struct {
	artifactServerIDs, eventServerIDs []string
	artifactServers, eventServers     spiffe.Peers // the IDs, parsed
	workloadAPI                       string       // its address
}

// enabled reports whether the controller needs an identity.
func (o *mutualTLSOptions) enabled() bool {
	return !o.artifactServers.Empty() || !o.eventServers.Empty()
}

// gitOptions configure the requests to git servers.
type gitOptions struct {
	timeout, checkoutTimeout time.Duration
	knownHostsFile           string
	knownHosts               []byte // the content of knownHostsFile
	allowLocal               bool
}

// workspaceOptions configure where and how pulumi runs.
type workspaceOptions struct {
	runtime string
	// allowProcessInCluster permits the process runtime in a pod.
	allowProcessInCluster bool
	// defaultServiceAccount is the ServiceAccount of workspace pods whose Stack or Workspace names none.
	defaultServiceAccount string

	// agentPath and pulumiPath are for the process runtime, idleTimeout for both runtimes.
	agentPath, pulumiPath string
	idleTimeout           time.Duration

	// For the pod runtime.
	agentImage, agentPullPolicy, agentVolume, clusterDomain string
}

const (
	// The values of --workspace-runtime.
	runtimeProcess = "process"
	runtimePod     = "pod"
)

// featureGates returns all gates with their default states, which are those of Flux's controllers. ExternalArtifact lets Stacks use sources
// of the kind ExternalArtifact, which any controller may publish.
func featureGates() map[string]bool {
	return map[string]bool{runtimectrl.FeatureGateExternalArtifact: false}
}

// defaultDependencyKinds are those of Flux that deploy something, and those of this API. A source of Flux is not among them: that it is
// ready says nothing about what is deployed, and a Stack waits for its own source anyway.
func defaultDependencyKinds() []string {
	return []string{
		"kustomize.toolkit.fluxcd.io/Kustomization", "helm.toolkit.fluxcd.io/HelmRelease",
		pulumiv1.GroupVersion.Group + "/" + pulumiv1.ProgramKind, autov1alpha1.GroupVersion.Group + "/" + autov1alpha1.WorkspaceKind,
	}
}

// usageError is a mistake in the command line or the environment.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// errHelp is returned after the help was printed on request.
var errHelp = pflag.ErrHelp

// parseOptions reads the command line and the environment. Mistakes are usage errors.
func parseOptions(args []string, stdout io.Writer) (*options, error) {
	o := &options{runtimeNamespace: os.Getenv(runtimectrl.EnvRuntimeNamespace)}
	flags := o.flagSet()
	flags.SetOutput(stdout)
	err := flags.Parse(args)
	if err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if err == nil {
		err = setFromEnvironment(flags)
	}
	if err == nil {
		err = o.validate()
	}
	if err != nil && !errors.Is(err, errHelp) {
		return nil, &usageError{err}
	}
	return o, err
}

// setFromEnvironment sets the flags that are easier to set as environment variables in a generated Deployment.
func setFromEnvironment(flags *pflag.FlagSet) error {
	for name, variable := range map[string]string{"agent-image": "AGENT_IMAGE", "agent-image-pull-policy": "AGENT_IMAGE_PULL_POLICY"} {
		if value := os.Getenv(variable); value != "" && !flags.Changed(name) {
			if err := flags.Set(name, value); err != nil {
				return fmt.Errorf("environment variable %s: %w", variable, err)
			}
		}
	}
	return nil
}

// flagSet declares all flags. A flag that Flux's controllers also have keeps their name, default and meaning, except for
// --no-cross-namespace-refs, whose default here is true, and --concurrent, which is for each namespace.
func (o *options) flagSet() *pflag.FlagSet {
	fs := pflag.NewFlagSet(controllerName, pflag.ContinueOnError)
	fs.Usage = func() {
		fmt.Fprintf(fs.Output(), "Usage: %s [flags]\n\n%s", controllerName, fs.FlagUsagesWrapped(120))
	}
	fs.BoolVar(&o.version, "version", false, "Print the version and exit.")
	fs.StringVar(&o.metricsAddr, "metrics-addr", ":8080", "The address the metric endpoint binds to.")
	fs.StringVar(&o.eventsAddr, "events-addr", "", "The address of the events receiver, an http or https URL.")
	fs.StringVar(&o.healthAddr, "health-addr", ":9440", "The address the health endpoint binds to.")
	fs.StringVar(&o.pprofAddr, "pprof-addr", "",
		"The loopback address the endpoint of Go's profiles, /debug/pprof/, binds to, e.g. 'localhost:6060'. Profiles show memory, so they are off by default.")
	fs.IntVar(&o.concurrent, "concurrent", 4, "The number of concurrent reconciles of each kind in one namespace, and of downloads for it; in all namespaces together there are up to twice as many.")
	fs.IntVar(&o.maxOperations, "max-operations", 0,
		"The maximum number of Pulumi operations that run at the same time; the others are queued. 0 means no limit with --workspace-runtime=pod. With process, it means four for each processor, but no more than fit into the memory limit with 150 MiB each.")
	fs.DurationVar(&o.requeueDependency, "requeue-dependency", 30*time.Second,
		"The interval at which failing dependencies are reevaluated.")
	fs.DurationVar(&o.gracefulShutdownTimeout, "graceful-shutdown-timeout", 600*time.Second,
		"The duration given to the controller to finish what it is doing before it ends.")
	fs.StringSliceVar(&o.dependencyKindNames, "dependency-kinds", defaultDependencyKinds(),
		"The kinds of objects, as 'group/Kind', that Stacks may name in spec.dependsOn besides Stacks, at most 16; '' means none. "+
			"The controller needs the rights get, list and watch for them.")
	o.client.bindFlags(fs)
	o.log.BindFlags(fs)
	o.leaderElection.BindFlags(fs)
	o.rateLimiter.BindFlags(fs)
	o.jitter.BindFlags(fs)
	o.features.BindFlags(fs)
	o.watch.BindFlags(fs)
	fs.Lookup("watch-label-selector").Usage = "Watch for resources with matching labels e.g. 'sharding.fluxcd.io/key=shard1'."
	fs.Lookup("watch-configs-label-selector").Usage = "Watch for ConfigMaps and Secrets with matching labels, of which only the metadata is read; " +
		"a change of one updates the Stacks that use it. 'owner!=helm' watches all but the releases of Helm, 'none' watches none."
	o.acl.BindFlags(fs)
	o.acl.NoCrossNamespaceRefs = true
	fs.Lookup("no-cross-namespace-refs").DefValue = "true"
	o.artifacts.bindFlags(fs)
	o.mtls.bindFlags(fs)
	o.git.bindFlags(fs)
	o.workspace.bindFlags(fs)
	fs.BoolVar(&o.tracing, "enable-tracing", false,
		"Send a trace of each update with OpenTelemetry, configured by the environment variables OTEL_EXPORTER_OTLP_ENDPOINT and others.")
	fs.BoolVar(&o.requireVerified, "require-verified-sources", false,
		"Run only sources that Flux has verified: the source of every Stack and Update must be a GitRepository or an OCIRepository with spec.verify.")
	return fs
}

func (o *clientOptions) bindFlags(fs *pflag.FlagSet) {
	fs.Float32Var(&o.qps, "kube-api-qps", 50, "The maximum queries-per-second of requests sent to the Kubernetes API.")
	fs.IntVar(&o.burst, "kube-api-burst", 300, "The maximum burst queries-per-second of requests sent to the Kubernetes API.")
}

func (o *artifactOptions) bindFlags(fs *pflag.FlagSet) {
	fs.IntVar(&o.httpRetries, "http-retry", 9,
		"The maximum number of retries when failing to fetch artifacts over HTTP, within --http-timeout.")
	fs.DurationVar(&o.httpTimeout, "http-timeout", 30*time.Second, "The timeout of fetching an artifact over HTTP, retries included.")
	fs.StringVar(&o.storagePath, "storage-path", "/data", "The directory of fetched artifacts and workspaces.")
	quantity := func(target *resource.QuantityValue, name, value, usage string) {
		target.Quantity = resource.MustParse(value)
		fs.Var(target, name, usage)
	}
	quantity(&o.maxStoreSize, "storage-max-size", "4Gi",
		"The size of all stored artifacts at which artifacts are removed: first those that were not used for a day, then those of the namespace that has the most.")
	quantity(&o.maxSize, "artifact-max-size", "256Mi", "The maximum size of an artifact.")
	quantity(&o.maxUnpackedSize, "artifact-max-unpacked-size", "1Gi", "The maximum size of an artifact without its compression.")
	fs.IntVar(&o.maxEntries, "artifact-max-entries", 100_000, "The maximum number of files and directories in an artifact.")
}

func (o *mutualTLSOptions) bindFlags(fs *pflag.FlagSet) {
	const forms = "'spiffe://<trust domain>/<path>', a path that ends with '/' for all IDs below it, or 'spiffe://<trust domain>'; " +
		"the trust domain 'self' is that of this controller. Can be repeated."
	fs.StringArrayVar(&o.artifactServerIDs, spiffe.ArtifactServer.Flag, nil,
		"The SPIFFE ID of a server to fetch artifacts from, with mutual TLS only: "+forms)
	fs.StringArrayVar(&o.eventServerIDs, spiffe.EventServer.Flag, nil,
		"The SPIFFE ID of an events receiver to send events to, with mutual TLS only: "+forms)
}

func (o *gitOptions) bindFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&o.timeout, "git-timeout", git.DefaultTimeout, "The timeout of one request to a git server.")
	fs.DurationVar(&o.checkoutTimeout, "git-checkout-timeout", git.DefaultCheckoutTimeout, "The timeout of a checkout of a git commit.")
	fs.StringVar(&o.knownHostsFile, "git-known-hosts-file", "",
		"A file with the host keys of SSH servers in the format of OpenSSH, for all git sources, in addition to the keys that they name.")
	fs.BoolVar(&o.allowLocal, "git-allow-local-addresses", false,
		"Allow git servers at loopback, link-local, multicast and cloud metadata addresses, which are rejected otherwise.")
}

func (o *workspaceOptions) bindFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.runtime, "workspace-runtime", runtimePod,
		"Where pulumi runs: 'pod' is a pod for each workspace; 'process' is a child process of the controller, with the controller's identity.")
	fs.BoolVar(&o.allowProcessInCluster, "allow-process-runtime-in-cluster", false,
		"Allow --workspace-runtime=process in a pod. Programs then run with the controller's ServiceAccount, and read all Secrets that the controller can read.")
	fs.StringVar(&o.defaultServiceAccount, "default-service-account", "",
		"Default service account of workspace pods, used for Stacks and Workspaces that name none. It is looked up in their namespace.")
	fs.StringVar(&o.agentPath, "agent-path", "",
		"The executable of the workspace agent, for the process runtime. The default is 'agent' in the directory of the controller's executable.")
	fs.StringVar(&o.pulumiPath, "pulumi", "pulumi", "The pulumi CLI, for the process runtime: a path, or a name to find in PATH.")
	fs.DurationVar(&o.idleTimeout, "workspace-idle-timeout", 0,
		"The duration after which the agent of an idle workspace is removed, unless spec.idleTimeout of the Workspace is set; "+
			"the next operation starts an agent again. 0 means never for pods, and five minutes for processes.")
	fs.StringVar(&o.agentImage, "agent-image", "",
		"The image with the workspace agent, which the pod runtime needs. The default is the environment variable AGENT_IMAGE.")
	fs.StringVar(&o.agentPullPolicy, "agent-image-pull-policy", string(corev1.PullIfNotPresent),
		"When the image with the workspace agent is pulled: Always, IfNotPresent or Never. The environment variable AGENT_IMAGE_PULL_POLICY sets it as well.")
	fs.StringVar(&o.agentVolume, "agent-image-volume", string(pod.AutomaticDelivery),
		"Mount the image with the agent as a volume instead of copying the agent with an init container: pods start about a second sooner. "+
			"true needs Kubernetes 1.35 and containerd 2.1 or CRI-O 1.31, or later, on all nodes; "+
			"auto does so from Kubernetes 1.36 on, and copies the agent where a pod cannot be started with the volume; false always copies it.")
	fs.Lookup("agent-image-volume").NoOptDefVal = string(pod.ByImageVolume)
	fs.StringVar(&o.clusterDomain, "cluster-domain", pod.DefaultClusterDomain, "The DNS domain of the cluster, for the addresses of workspace pods; no proxy is used for names in it.")
}
