package podspec

import (
	"cmp"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/template"
)

// The images that are used when the user names none.
const (
	restrictedImage = "pulumi/pulumi:latest-nonroot"
	baselineImage   = "pulumi/pulumi:latest"
)

// envFileVariable is the environment variable with the path of the file to which containers and init containers can add variables for
// programs.
const envFileVariable = "PULUMI_ENV"

// bootstrapContainer copies the agent out of its image.
func bootstrapContainer(settings Settings) corev1.Container {
	return corev1.Container{
		Name:            BootstrapContainerName,
		Image:           settings.AgentImage,
		ImagePullPolicy: settings.AgentImagePullPolicy,
		Args:            []string{"install", "--to=" + AgentPath, "--workspace=" + WorkspacePath},
		VolumeMounts:    []corev1.VolumeMount{{Name: ShareVolume, MountPath: sharePath}},
		SecurityContext: &corev1.SecurityContext{ReadOnlyRootFilesystem: new(true)},
		// The reason why the container ended is in its log, and the end of the log becomes part of the pod's status.
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
}

// pulumiContainer runs the agent, and so Pulumi, in the user's image. Its command depends on the whole pod and is added later, by complete.
// There is no liveness probe, because a failing probe must not kill a running operation.
func pulumiContainer(workspace *autov1alpha1.Workspace) corev1.Container {
	spec := optional(&workspace.Spec)
	image := restrictedImage
	if workspace.GetSecurityProfile() == autov1alpha1.SecurityProfileBaseline {
		image = baselineImage
	}
	return corev1.Container{
		Name:            autov1alpha1.PulumiContainerName,
		Image:           cmp.Or(spec.Image, image),
		ImagePullPolicy: spec.ImagePullPolicy,
		WorkingDir:      WorkspacePath,
		EnvFrom:         spec.EnvFrom,
		Env:             template.MergeByKey(podVariables(), spec.Env, nameOfVariable, template.Replace),
		Resources:       spec.Resources,
		Ports:           []corev1.ContainerPort{{Name: portName, ContainerPort: Port, Protocol: corev1.ProtocolTCP}},
		ReadinessProbe: &corev1.Probe{
			TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(Port)}},
		VolumeMounts: []corev1.VolumeMount{
			{Name: ShareVolume, MountPath: sharePath},
			{Name: RPCVolume, MountPath: RPCPath, ReadOnly: true},
		},
		// The agent itself writes why it ends. The end of the log must not become part of the status, because it contains what programs print.
		TerminationMessagePolicy: corev1.TerminationMessageReadFile,
	}
}

// startupProbe finds the agent within a second of its start. The readiness probe would take up to ten seconds, because it runs for the life
// of the pod and is therefore infrequent. The startup probe never gives up: an agent that cannot start ends by itself.
func startupProbe() *corev1.Probe {
	return &corev1.Probe{
		TCPSocket:        &corev1.TCPSocketAction{Port: intstr.FromInt32(Port)},
		PeriodSeconds:    1,
		FailureThreshold: math.MaxInt32,
	}
}

// serveCommand returns the command that starts the agent. It contains no secrets, because everybody who may read the pod sees it.
func serveCommand(spec *corev1.PodSpec, workspace *autov1alpha1.Workspace, settings Settings) []string {
	program := AgentPath
	if settings.AgentVolume {
		program = ImageAgent
	}
	command := []string{
		program, "serve",
		fmt.Sprintf("--listen=:%d", Port),
		"--dir=" + sharePath,
		"--workspace=" + WorkspacePath,
		// A program may be anywhere in the user's image: the user who chooses the directory also chooses the image.
		"--local-root=/",
		"--env-file=" + EnvFile,
		"--tls-cert-file=" + RPCPath + "/" + corev1.TLSCertKey,
		"--tls-key-file=" + RPCPath + "/" + corev1.TLSPrivateKeyKey,
		"--api-token-file=" + RPCPath + "/token",
		"--api-ca-file=" + RPCPath + "/ca.crt",
		"--workspace-namespace=" + workspace.Namespace,
		"--workspace-name=" + workspace.Name,
		"--token-audience=" + settings.TokenAudience,
		"--controller=" + settings.Controller,
		fmt.Sprintf("--termination-grace=%ds", *spec.TerminationGracePeriodSeconds),
	}
	if !spec.HostNetwork && spec.HostnameOverride == nil {
		// The host name is the name of the pod, which no other pod has.
		command = append(command, "--exclusive-host")
	}
	return append(command, settings.AgentArgs...)
}

// moveSourceMounts moves mounts in the source to mountsPath. It returns the arguments that tell the agent where in the source they belong; a
// mount in another one is there with that.
func moveSourceMounts(mounts []corev1.VolumeMount) []string {
	var moved []string
	for i := range mounts {
		if name := path.Clean(mounts[i].MountPath); isIn(name, sourcePath) {
			moved = append(moved, strings.TrimPrefix(name, sourcePath+"/"))
			mounts[i].MountPath = mountsPath + strings.TrimPrefix(name, sourcePath)
		}
	}
	slices.Sort(moved)
	var arguments []string
	for n, name := range moved {
		if !slices.ContainsFunc(moved[:n], func(outer string) bool { return isIn(name, outer) }) {
			arguments = append(arguments, "--source-mount="+name)
		}
	}
	return arguments
}

// ExpectsFiles reports whether the container is an init container of the user's that sees the volume of the source.
func ExpectsFiles(pod *corev1.Pod, container string) bool {
	return slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == container && SeesShare(c) })
}

// SeesShare reports whether the container is one of the user's that mounts ShareVolume.
func SeesShare(container corev1.Container) bool {
	return container.Name != BootstrapContainerName &&
		slices.ContainsFunc(container.VolumeMounts, func(mount corev1.VolumeMount) bool { return mount.Name == ShareVolume })
}

// podVariables returns the variables that tell programs where they run, and the agent how much memory its container requests.
func podVariables() []corev1.EnvVar {
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
	}
	return []corev1.EnvVar{
		// For commands that people run in the pod before the first operation: as operations do, they use the key of the state
		// instead of making a new one.
		{Name: "PULUMI_FALLBACK_TO_STATE_SECRETS_MANAGER", Value: "true"},
		field("POD_NAMESPACE", "metadata.namespace"),
		field("POD_SA_NAME", "spec.serviceAccountName"),
		{Name: "AGENT_MEMLIMIT", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{
			ContainerName: autov1alpha1.PulumiContainerName, Resource: "requests.memory",
		}}},
	}
}

// optional marks all Secrets and ConfigMaps that variables refer to as optional, so that the pod starts without them: an operation gets
// their values with its request, and waits for those that are missing.
func optional(spec *autov1alpha1.WorkspaceSpec) *autov1alpha1.WorkspaceSpec {
	spec = spec.DeepCopy()
	for i := range spec.Env {
		from := ptr.Deref(spec.Env[i].ValueFrom, corev1.EnvVarSource{})
		if from.SecretKeyRef != nil {
			from.SecretKeyRef.Optional = new(true)
		}
		if from.ConfigMapKeyRef != nil {
			from.ConfigMapKeyRef.Optional = new(true)
		}
	}
	for _, source := range spec.EnvFrom {
		if source.SecretRef != nil {
			source.SecretRef.Optional = new(true)
		}
		if source.ConfigMapRef != nil {
			source.ConfigMapRef.Optional = new(true)
		}
	}
	return spec
}

// nameEnvFile adds envFileVariable as the first variable, so that other variables can refer to it.
func nameEnvFile(container *corev1.Container) {
	isSet := func(variable corev1.EnvVar) bool { return variable.Name == envFileVariable }
	if !slices.ContainsFunc(container.Env, isSet) {
		container.Env = slices.Insert(container.Env, 0, corev1.EnvVar{Name: envFileVariable, Value: EnvFile})
	}
}

// requestResources adds small default requests for memory and CPU where there are none. If a limit is below the default, the request is the
// limit.
func requestResources(resources *corev1.ResourceRequirements) {
	for name, least := range map[corev1.ResourceName]resource.Quantity{
		corev1.ResourceMemory: resource.MustParse("64Mi"),
		corev1.ResourceCPU:    resource.MustParse("100m"),
	} {
		if _, requested := resources.Requests[name]; requested {
			continue
		}
		if limit, limited := resources.Limits[name]; limited && limit.Cmp(least) < 0 {
			least = limit
		}
		if resources.Requests == nil {
			resources.Requests = corev1.ResourceList{}
		}
		resources.Requests[name] = least
	}
}

// sameResources returns the CPU, the memory and the disk of a container for one that runs before it. That costs nothing, and a ResourceQuota wants
// them of each container.
func sameResources(of *corev1.ResourceRequirements) (same corev1.ResourceRequirements) {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		for _, list := range []struct {
			from corev1.ResourceList
			to   *corev1.ResourceList
		}{{of.Requests, &same.Requests}, {of.Limits, &same.Limits}} {
			if quantity, set := list.from[name]; set {
				if *list.to == nil {
					*list.to = corev1.ResourceList{}
				}
				(*list.to)[name] = quantity
			}
		}
	}
	return same
}
