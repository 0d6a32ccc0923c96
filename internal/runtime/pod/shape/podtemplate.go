package shape

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

const (
	// BootstrapContainerName is the name of the first init container, which brings the agent into the pod.
	BootstrapContainerName = "bootstrap"

	// ShareVolume is the volume that all generated containers have at SharePath: the agent, the program and the state of
	// operations are on it.
	ShareVolume = "share"
	// SharePath is where ShareVolume is mounted.
	SharePath = "/share"
	// WorkspacePath is the directory of programs that are not delivered.
	WorkspacePath = SharePath + "/workspace"

	// RPCVolume holds what the agent identifies itself with, to the controller and to the API server.
	RPCVolume = "rpc"
	// RPCPath is where RPCVolume is mounted, in the container in which Pulumi runs only.
	RPCPath = "/var/run/secrets/stack-controller"

	// Port is the TCP port of the agent.
	Port = 50051

	portName  = "grpc"
	agentPath = SharePath + "/agent"
	envFile   = SharePath + "/.env"
)

const (
	// defaultTerminationGrace is how many seconds an operation may take to end when its pod has to go.
	defaultTerminationGrace = 600
	// tokenLifetime is how many seconds the agent's token for the API server is valid; kubelet renews it in time.
	tokenLifetime = 3600
)

// podTemplate is the whole template of the pod, but for the hashes.
func podTemplate(workspace *autov1alpha1.Workspace, settings Settings) (corev1.PodTemplateSpec, error) {
	var custom autov1alpha1.EmbeddedPodTemplateSpec
	if workspace.Spec.PodTemplate != nil {
		custom = *workspace.Spec.PodTemplate.DeepCopy()
	}
	overlay := &corev1.PodSpec{}
	if custom.Spec != nil {
		overlay = &custom.Spec.PodSpec
	}
	adapt(overlay)
	if err := check(workspace, overlay); err != nil {
		return corev1.PodTemplateSpec{}, err
	}
	spec, err := merge(generated(workspace, settings), overlay)
	if err != nil {
		return corev1.PodTemplateSpec{}, err
	}
	complete(&spec, workspace, settings)
	return corev1.PodTemplateSpec{ObjectMeta: templateMeta(workspace, custom.Metadata), Spec: spec}, nil
}

// generated is the pod without the user's pod template.
func generated(workspace *autov1alpha1.Workspace, settings Settings) corev1.PodSpec {
	profile := workspace.GetSecurityProfile()
	return corev1.PodSpec{
		ServiceAccountName:            workspace.GetServiceAccountName(),
		TerminationGracePeriodSeconds: ptr.To[int64](defaultTerminationGrace),
		SecurityContext:               podSecurity(profile),
		InitContainers:                []corev1.Container{bootstrapContainer(settings)},
		Containers:                    []corev1.Container{pulumiContainer(workspace)},
		Volumes: []corev1.Volume{
			{Name: ShareVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			rpcVolume(workspace),
		},
	}
}

// rpcVolume holds the key pair of the agent, and a token and a certificate for its questions to the API server: the
// ServiceAccount's own token need not be mounted.
func rpcVolume(workspace *autov1alpha1.Workspace) corev1.Volume {
	// The group of the pod's volumes may read. Without one the user of the image is not known.
	mode := ptr.To[int32](0o444)
	if workspace.GetSecurityProfile() == autov1alpha1.SecurityProfileRestricted {
		mode = ptr.To[int32](0o440)
	}
	file := func(name string) corev1.KeyToPath { return corev1.KeyToPath{Key: name, Path: name} }
	return corev1.Volume{Name: RPCVolume, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		DefaultMode: mode,
		Sources: []corev1.VolumeProjection{
			{Secret: &corev1.SecretProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: SecretName(workspace)},
				Items:                []corev1.KeyToPath{file(corev1.TLSCertKey), file(corev1.TLSPrivateKeyKey)},
			}},
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
				Path: "token", ExpirationSeconds: ptr.To[int64](tokenLifetime),
			}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"},
				Items:                []corev1.KeyToPath{file("ca.crt")},
			}},
		},
	}}}
}

// complete adds what depends on the pod as a whole, to the user's containers as well.
func complete(spec *corev1.PodSpec, workspace *autov1alpha1.Workspace, settings Settings) {
	pulumi := &spec.Containers[0] // the generated containers come first
	pulumi.Command = serveCommand(spec, workspace, settings)
	requestResources(&pulumi.Resources)
	if pulumi.StartupProbe == nil {
		pulumi.StartupProbe = startupProbe()
	}
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			nameEnvFile(&containers[i])
			if workspace.GetSecurityProfile() == autov1alpha1.SecurityProfileRestricted {
				restrict(&containers[i])
			}
		}
	}
}
