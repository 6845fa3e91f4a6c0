/* Every limit on what a remote or a file may make us do, in one place. A test stands at each limit. */
#ifndef SHOAL_RUNTIME_BASE_BOUNDS_H
#define SHOAL_RUNTIME_BASE_BOUNDS_H

#define NAME_MAX_LEN              64    /* job, peer and device names, bytes without the terminator */
#define TEXT_MAX_LEN              1024  /* reasons and sentences on the wire */
#define HOST_MAX_LEN              255   /* a host name or numeric address */
#define ADDRS_MAX                 8     /* addresses that one peer or invite may state */
#define PEERS_MAX                 1024  /* admitted peers of one job */
#define UNITS_MAX                 1024  /* units of one model */
#define TENSORS_MAX               16384 /* tensors of one model */
#define TENSOR_DIMS_MAX           4
#define TENSOR_NAME_MAX_LEN       95
#define MICROBATCHES_MAX          4096         /* microbatches of one step */
#define STAGES_MAX                UNITS_MAX    /* stages of one plan */
#define HOLDERS_MAX               8192         /* (stage, peer) entries of one plan */
#define GROUPS_MAX                4096         /* reduce groups of one plan */
#define HEAD_BYTES_MAX            (4u << 20)   /* frame 0 of a message */
#define BODY_BYTES_MAX            (64u << 20)  /* frame 1 of a message */
#define CHUNK_BYTES               (1u << 20)   /* large tensors travel in pieces of this size */
#define JOB_TEXT_MAX              (256u << 10) /* a job file */
#define JSON_TEXT_MAX             (1u << 20)   /* a small JSON file */
#define SAFETENSORS_HEADER_MAX    (16u << 20)  /* the JSON header of a tensor file */
#define SAFETENSORS_NAME_MAX_LEN  255          /* a tensor's name in a file */
#define HELD_PER_SENDER_MAX       4096         /* messages kept until a lease, attempt or view explains them */
#define HELD_BYTES_PER_SENDER_MAX (256u << 20)
#define SEND_QUEUE_BYTES_MAX      (1u << 30) /* unsent bytes kept for one link before it is given up */
#define GUEST_MESSAGE_BYTES_MAX   (64u << 10) /* a message to a lobby, head and body each */
#define GUEST_QUEUE_BYTES_MAX     (1u << 20)  /* unsent answers kept for one guest of a lobby */
#define LINE_MAX_LEN              4096       /* one line of a log or event */

#endif
