package podspec

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/template"
)

const (
	// BootstrapContainerName is the name of the first init container, which copies the agent into the pod.
	BootstrapContainerName = "bootstrap"

	// ShareVolume is the volume that all generated containers mount at sharePath. It contains the agent, the program, and the state of
	// operations.
	ShareVolume = "share"
	// sharePath is where ShareVolume is mounted.
	sharePath = "/share"
	// WorkspacePath is the directory of programs that are not delivered.
	WorkspacePath = sharePath + "/workspace"

	// sourcePath is the directory of the source that was delivered. The agent replaces it with each revision, so what users mount in it
	// is mounted in mountsPath instead, to which links in the source lead.
	sourcePath = sharePath + "/source"
	mountsPath = sharePath + "/mounts"

	// RPCVolume contains the agent's credentials for the controller and for the API server.
	RPCVolume = "rpc"
	// RPCPath is where RPCVolume is mounted. Only the container in which Pulumi runs mounts it.
	RPCPath = "/var/run/secrets/stack-controller"

	// CloudTokenVolume has the token with which Pulumi logs in to Pulumi Cloud.
	CloudTokenVolume = "pulumi-cloud-token"

	// Port is the TCP port of the agent.
	Port = 50051

	// imageVolume is the volume with the agent's image, mounted at imagePath.
	imageVolume = "stack-controller-agent"
	imagePath   = "/opt/stack-controller"
	// AgentPath is where an init container puts the agent.
	AgentPath = sharePath + "/agent"
	// ImageAgent is the path of the agent in pods that mount its image instead.
	ImageAgent = imagePath + "/ko-app/agent"

	portName = "grpc"
	// servicePortName is the name of the same port in the Service. A service mesh takes the protocol from the beginning of the name.
	servicePortName = "tls-grpc"

	// EnvFile is the file to which init containers can add variables for the agent and what it starts.
	EnvFile = sharePath + "/.env"

	// defaultTerminationGrace is how many seconds an operation may take to end when its pod is deleted.
	defaultTerminationGrace = 600
	// tokenLifetime is how many seconds the agent's token for the API server is valid; kubelet renews it in time.
	tokenLifetime = 3600
	// unprivileged is user and group of pods with the restricted profile, as in the pulumi/pulumi:latest-nonroot image.
	unprivileged = 1000
	// fetchContainerName is an init container that the Pulumi Kubernetes Operator generates, with the image operatorImage. Here nothing needs
	// to be fetched.
	fetchContainerName = "fetch"
	operatorImage      = "pulumi-kubernetes-operator"
)

// podTemplate returns the whole template of the pod, except the hashes.
func podTemplate(workspace *autov1alpha1.Workspace, settings Settings) (corev1.PodTemplateSpec, error) {
	custom := ptr.Deref(workspace.Spec.PodTemplate.DeepCopy(), autov1alpha1.EmbeddedPodTemplateSpec{})
	overlay := &cmp.Or(custom.Spec, &autov1alpha1.EmbeddedPodSpec{}).PodSpec
	adapt(overlay)
	if err := check(workspace, overlay); err != nil {
		return corev1.PodTemplateSpec{}, err
	}
	if len(overlay.InitContainers) > 0 {
		// The user's init containers expect the files that the bootstrap container creates.
		settings.AgentVolume = false
	}
	spec, err := merge(generated(workspace, settings), overlay)
	if err != nil {
		return corev1.PodTemplateSpec{}, err
	}
	complete(&spec, workspace, settings)
	return corev1.PodTemplateSpec{ObjectMeta: templateMeta(workspace, custom.Metadata), Spec: spec}, nil
}

// generated returns the pod without the user's pod template.
func generated(workspace *autov1alpha1.Workspace, settings Settings) corev1.PodSpec {
	profile := workspace.GetSecurityProfile()
	spec := corev1.PodSpec{
		ServiceAccountName:            workspace.GetServiceAccountName(),
		TerminationGracePeriodSeconds: ptr.To[int64](defaultTerminationGrace),
		NodeSelector:                  map[string]string{corev1.LabelOSStable: string(corev1.Linux)}, // also where Windows nodes have no taint
		SecurityContext:               podSecurity(profile),
		Containers:                    []corev1.Container{pulumiContainer(workspace)},
		Volumes: []corev1.Volume{
			{Name: ShareVolume, EmptyDir: &corev1.EmptyDirVolumeSource{}},
			rpcVolume(workspace),
		},
	}
	mountCloudToken(&spec, workspace)
	if !settings.AgentVolume {
		spec.InitContainers = []corev1.Container{bootstrapContainer(settings)}
		return spec
	}
	spec.Volumes = append(spec.Volumes, corev1.Volume{Name: imageVolume,
		Image: &corev1.ImageVolumeSource{Reference: settings.AgentImage, PullPolicy: settings.AgentImagePullPolicy}})
	pulumi := &spec.Containers[0]
	pulumi.VolumeMounts = append(pulumi.VolumeMounts, corev1.VolumeMount{Name: imageVolume, MountPath: imagePath, ReadOnly: true})
	return spec
}

// rpcVolume returns the volume with the key pair of the agent, and with a token and a CA certificate for its requests to the API server, so
// that the token of the ServiceAccount need not be mounted.
func rpcVolume(workspace *autov1alpha1.Workspace) corev1.Volume {
	file := func(name string) corev1.KeyToPath { return corev1.KeyToPath{Key: name, Path: name} }
	return corev1.Volume{Name: RPCVolume, Projected: &corev1.ProjectedVolumeSource{
		DefaultMode: projectedMode(workspace),
		Sources: []corev1.VolumeProjection{
			{Secret: &corev1.SecretProjection{
				Name:  SecretName(workspace),
				Items: []corev1.KeyToPath{file(corev1.TLSCertKey), file(corev1.TLSPrivateKeyKey)},
			}},
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
				Path: "token", ExpirationSeconds: ptr.To[int64](tokenLifetime),
			}},
			{ConfigMap: &corev1.ConfigMapProjection{
				Name:  "kube-root-ca.crt",
				Items: []corev1.KeyToPath{file("ca.crt")},
			}},
		},
	}}
}

// projectedMode returns the mode of the projected files. Without an fsGroup, the user of the image may be any user, so everybody in the
// container may read the files. With one, the group may.
func projectedMode(workspace *autov1alpha1.Workspace) *int32 {
	if workspace.GetSecurityProfile() == autov1alpha1.SecurityProfileRestricted {
		return ptr.To[int32](0o440)
	}
	return ptr.To[int32](0o444)
}

// mountCloudToken gives Pulumi a token of the pod's ServiceAccount that only Pulumi Cloud accepts, if the Workspace logs in with one. Other
// containers do not get it.
func mountCloudToken(spec *corev1.PodSpec, workspace *autov1alpha1.Workspace) {
	cloud := workspace.Spec.PulumiCloud
	if cloud == nil {
		return
	}
	spec.Volumes = append(spec.Volumes, corev1.Volume{Name: CloudTokenVolume, Projected: &corev1.ProjectedVolumeSource{
		DefaultMode: projectedMode(workspace),
		Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
			Audience: cloud.Audience(), ExpirationSeconds: ptr.To[int64](tokenLifetime), Path: autov1alpha1.PulumiCloudTokenFile,
		}}},
	}})
	pulumi := &spec.Containers[0]
	pulumi.VolumeMounts = append(pulumi.VolumeMounts, corev1.VolumeMount{Name: CloudTokenVolume, MountPath: autov1alpha1.PulumiCloudTokenDir, ReadOnly: true})
}

// complete adds what depends on the pod as a whole. It changes the user's containers as well.
func complete(spec *corev1.PodSpec, workspace *autov1alpha1.Workspace, settings Settings) {
	pulumi := &spec.Containers[0] // the generated containers come first
	pulumi.Command = serveCommand(spec, workspace, settings)
	if workspace.Spec.Local == nil {
		pulumi.Command = append(pulumi.Command, moveSourceMounts(pulumi.VolumeMounts)...)
	}
	requestResources(&pulumi.Resources)
	for i := range spec.InitContainers {
		if bootstrap := &spec.InitContainers[i]; bootstrap.Name == BootstrapContainerName && len(bootstrap.Resources.Requests)+len(bootstrap.Resources.Limits) == 0 {
			bootstrap.Resources = sameResources(&pulumi.Resources)
		}
	}
	pulumi.StartupProbe = cmp.Or(pulumi.StartupProbe, startupProbe())
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			nameEnvFile(&containers[i])
			if workspace.GetSecurityProfile() == autov1alpha1.SecurityProfileRestricted {
				restrict(&containers[i])
			}
		}
	}
}

// podSecurity returns what the security profile requires of the pod as a whole. See
// https://kubernetes.io/docs/concepts/security/pod-security-standards.
func podSecurity(profile autov1alpha1.SecurityProfile) *corev1.PodSecurityContext {
	security := &corev1.PodSecurityContext{
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	if profile == autov1alpha1.SecurityProfileRestricted {
		security.RunAsNonRoot = new(true)
		security.RunAsUser = ptr.To[int64](unprivileged)
		security.RunAsGroup = ptr.To[int64](unprivileged)
		security.FSGroup = ptr.To[int64](unprivileged)
		// The kubelet goes through all files of a claim with a cache of plugins or packages once, instead of at every start of the pod.
		security.FSGroupChangePolicy = new(corev1.FSGroupChangeOnRootMismatch)
	}
	return security
}

// restrict adds what the restricted profile requires of every container. It keeps the user's settings, and leaves out what contradicts
// them: a privileged container cannot forbid privilege escalation, and root without capabilities cannot prepare a volume.
func restrict(container *corev1.Container) {
	container.SecurityContext = cmp.Or(container.SecurityContext, &corev1.SecurityContext{})
	security := container.SecurityContext
	if ptr.Deref(security.Privileged, false) {
		return
	}
	security.AllowPrivilegeEscalation = cmp.Or(security.AllowPrivilegeEscalation, new(false))
	if security.RunAsUser != nil && *security.RunAsUser == 0 {
		return
	}
	security.Capabilities = cmp.Or(security.Capabilities, &corev1.Capabilities{})
	if len(security.Capabilities.Drop) == 0 {
		security.Capabilities.Drop = []corev1.Capability{"ALL"}
	}
}

// adapt converts settings for other versions of the API: it moves the deprecated name of the service account to the current field, and
// removes customizations of an init container that is no longer needed.
func adapt(custom *corev1.PodSpec) {
	custom.ServiceAccountName = cmp.Or(custom.ServiceAccountName, custom.DeprecatedServiceAccount)
	custom.DeprecatedServiceAccount = ""
	custom.InitContainers = slices.DeleteFunc(custom.InitContainers, func(container corev1.Container) bool {
		return container.Name == fetchContainerName &&
			(container.Image == "" || len(container.Command) == 0 && strings.Contains(path.Base(container.Image), operatorImage))
	})
}

// merge applies the user's pod template, which it may change. The generated containers and volumes stay first, the user's follow in their
// order.
func merge(base corev1.PodSpec, custom *corev1.PodSpec) (corev1.PodSpec, error) {
	var problems field.ErrorList
	root := field.NewPath("spec", "podTemplate", "spec")
	mergeContainers := func(base, custom corev1.Container) corev1.Container {
		merged, err := mergeContainer(base, custom)
		if err != nil {
			problems = append(problems, unmergeable(root.Child("containers").Key(base.Name), err))
		}
		return merged
	}
	// Lists are merged here: a strategic merge would put the user's items first, and would treat two items with the same key as one even where
	// another field distinguishes them, as in topology constraints and ports.
	initContainers := template.MergeByKey(base.InitContainers, custom.InitContainers, nameOfContainer, mergeContainers)
	containers := template.MergeByKey(base.Containers, custom.Containers, nameOfContainer, mergeContainers)
	volumes := template.MergeByKey(base.Volumes, custom.Volumes, nameOfVolume, mergeVolume)
	constraints := custom.TopologySpreadConstraints
	base.InitContainers, base.Containers, base.Volumes = nil, nil, nil
	custom.InitContainers, custom.Containers, custom.Volumes = nil, nil, nil
	custom.TopologySpreadConstraints = nil
	merged, err := template.Merge(base, custom)
	if err != nil {
		problems = append(problems, unmergeable(root, err))
	}
	if len(problems) > 0 {
		return corev1.PodSpec{}, &InvalidError{Problems: problems}
	}
	merged.InitContainers, merged.Containers, merged.Volumes = initContainers, containers, volumes
	merged.TopologySpreadConstraints = constraints
	return merged, nil
}

// unmergeable returns the error for a failed strategic merge: in a list that is merged by a key, an item lacks the key.
func unmergeable(at *field.Path, err error) *field.Error {
	return field.Forbidden(at, fmt.Sprintf("cannot be merged over the generated pod: %v", err))
}

// mergeContainer merges a container that the user customizes.
func mergeContainer(base, custom corev1.Container) (corev1.Container, error) {
	env := template.MergeByKey(base.Env, custom.Env, nameOfVariable, template.Replace)
	mounts := template.MergeByKey(base.VolumeMounts, custom.VolumeMounts, pathOfMount, template.Replace)
	ports := template.MergeByKey(base.Ports, custom.Ports, keyOfPort, template.Replace)
	base.Env, base.VolumeMounts, base.Ports = nil, nil, nil
	custom.Env, custom.VolumeMounts, custom.Ports = nil, nil, nil
	merged, err := template.Merge(base, &custom)
	if err != nil {
		return corev1.Container{}, err
	}
	merged.Env, merged.VolumeMounts, merged.Ports = env, mounts, ports
	return merged, nil
}

// mergeVolume replaces a generated volume by the user's volume of the same name, if that has a source.
func mergeVolume(base, custom corev1.Volume) corev1.Volume {
	if custom.VolumeSource == (corev1.VolumeSource{}) {
		return base
	}
	return custom
}

func nameOfContainer(container corev1.Container) string { return container.Name }
func nameOfVolume(volume corev1.Volume) string          { return volume.Name }
func nameOfVariable(variable corev1.EnvVar) string      { return variable.Name }
func pathOfMount(mount corev1.VolumeMount) string       { return path.Clean(mount.MountPath) }

// keyOfPort distinguishes ports as the API does. The default protocol is TCP.
func keyOfPort(port corev1.ContainerPort) string {
	return fmt.Sprintf("%d/%s", port.ContainerPort, cmp.Or(port.Protocol, corev1.ProtocolTCP))
}
